/* The registers of a core, and its runs. hw/control has the definition. */

#include <stdlib.h>
#include <string.h>

#include "core_state.h"

#define LOOKS 2u           /* looks at the status during which an executed run shows as running */
#define MEMORY_LATENCY 32u /* cycles of a memory access: a core with a shorter timeout gives TIMEOUT */

tpu_core_config tpu_core_for(const tpu_needs *needs)
{
    /* Features that need a number of lanes have one lane. */
    const uint32_t lane = 1u << TPU_FEATURES_TABLE_LANES_SHIFT | 1u << TPU_FEATURES_UPDATE_LANES_SHIFT;
    const uint32_t lanes = TPU_FEATURES_TABLE_LANES_MASK | TPU_FEATURES_UPDATE_LANES_MASK;
    tpu_core_config config = {0, 0, 0, 0, 0, 0, 0, 4, 64};

    config.config = needs->n | 1u << TPU_CONFIG_LEAD_SHIFT | 1u << TPU_CONFIG_LATENCY_SHIFT |
                    needs->bus_bytes << TPU_CONFIG_BUS_BYTES_SHIFT | needs->in_flight << TPU_CONFIG_IN_FLIGHT_SHIFT;
    config.features = (needs->features & ~lanes) | (needs->features & lane);
    config.unified_buffer_depth = needs->unified_buffer_depth;
    config.accumulator_depth = needs->accumulator_depth;
    config.bias_depth = config.update_depth = needs->bias_depth;
    config.weight_fifo_depth = needs->weight_fifo_depth;
    return config;
}

static void set_constants(tpu_core *core)
{
    const tpu_core_config *config = &core->config;

    REGISTER(core, ID) = TPU_IDENTIFIER;
    REGISTER(core, VERSION) = TPU_INTERFACE_VERSION;
    REGISTER(core, CONFIG) = config->config;
    REGISTER(core, FEATURES) = config->features;
    REGISTER(core, UNIFIED_BUFFER_DEPTH) = config->unified_buffer_depth;
    REGISTER(core, ACCUMULATOR_DEPTH) = config->accumulator_depth;
    REGISTER(core, BIAS_DEPTH) = config->bias_depth;
    REGISTER(core, WEIGHT_FIFO_DEPTH) = config->weight_fifo_depth;
    REGISTER(core, STATUS) = TPU_STATUS_QUIET_MASK;
    REGISTER(core, TIMEOUT) = 1u << 20;
    core->is_refused = 1;
    REGISTER(core, RING) = 1u << TPU_RING_SIZE_SHIFT;
    if (config->features & TPU_FEATURES_RING_MASK)
        REGISTER(core, RING_DEPTH) = config->ring_depth;
}

tpu_core *tpu_core_new(const tpu_core_config *config, tpu_core_memory *memory, void *context)
{
    tpu_core *core = calloc(1, sizeof *core);
    size_t n = config->config & TPU_CONFIG_N_MASK;

    if (!core)
        return 0;
    if (n < 2 || n > MOST_N || (n & (n - 1)) || !(config->config & TPU_CONFIG_BUS_BYTES_MASK) ||
        (config->config & TPU_CONFIG_IN_FLIGHT_MASK) >> TPU_CONFIG_IN_FLIGHT_SHIFT > MOST_IN_FLIGHT) {
        free(core);
        return 0;
    }
    core->config = *config;
    core->n = (uint32_t)n;
    core->width = core->n < COLUMNS ? COLUMNS : core->n;
    core->bus_bytes = (config->config & TPU_CONFIG_BUS_BYTES_MASK) >> TPU_CONFIG_BUS_BYTES_SHIFT;
    core->in_flight = (config->config & TPU_CONFIG_IN_FLIGHT_MASK) >> TPU_CONFIG_IN_FLIGHT_SHIFT;
    core->memory = memory;
    core->context = context;
    core->next = core;
    core->buffer = calloc(config->unified_buffer_depth * n, sizeof *core->buffer);
    core->updates = calloc(config->update_depth * 3 * n, sizeof *core->updates);
    core->sums = calloc(config->accumulator_depth * n, sizeof *core->sums);
    core->bias = calloc(config->bias_depth * n, sizeof *core->bias);
    core->tile = calloc(n * core->width, sizeof *core->tile);
    core->operands = calloc(ROWS * n, sizeof *core->operands);
    if (!core->buffer || !core->updates || !core->sums || !core->bias || !core->tile || !core->operands) {
        tpu_core_free(core);
        return 0;
    }
    core->tile_least = 255;
    tpu_core_narrow_records(core);
    set_constants(core);
    return core;
}

void tpu_core_free(tpu_core *core)
{
    if (!core)
        return;
    free(core->buffer);
    free(core->updates);
    free(core->sums);
    free(core->bias);
    free(core->tile);
    free(core->operands);
    free(core->fifo);
    free(core);
}

void tpu_core_join(tpu_core *const *cores, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++)
        cores[i]->next = cores[(i + 1) % count];
}

/* RING is refused at first, and from a fault or the reset of a run, until a flush. */
static void guard_ring(tpu_core *core, int is_abandoned)
{
    if (is_abandoned || (REGISTER(core, STATUS) & TPU_STATUS_FAULT_MASK))
        core->is_refused = 1;
    if (REGISTER(core, RING) & TPU_RING_FLUSH_MASK)
        core->is_refused = 0;
}

static void end_run(tpu_core *core, uint32_t cause, uint32_t pc)
{
    core->is_running = core->is_waiting = 0;
    REGISTER(core, STATUS) = TPU_STATUS_QUIET_MASK | (cause ? TPU_STATUS_FAULT_MASK : TPU_STATUS_DONE_MASK);
    REGISTER(core, INTERRUPT) |= TPU_INTERRUPT_PENDING_MASK;
    if (cause) {
        REGISTER(core, FAULT_CAUSE) = cause;
        REGISTER(core, FAULT_PC) = pc;
    }
    REGISTER(core, CYCLES) += REGISTER(core, BUSY);
    guard_ring(core, 0);
}

/* Fetches, checks and executes one instruction. */
static void execute_one(tpu_core *core)
{
    uint32_t pc = core->pc, step = core->bus_bytes > 32 ? core->bus_bytes : 32, field[FIELDS], cause;
    const core_record *record;
    const uint8_t *word;

    if (pc % core->bus_bytes || (uint64_t)pc + step > tpu_core_region_bytes(core, TPU_REGION_MODEL)) {
        end_run(core, TPU_FAULT_ADDRESS, pc);
        return;
    }
    word = tpu_core_host(core, TPU_REGION_MODEL, pc, step, 0);
    cause = word ? tpu_core_decode(core, word, &record, field) : TPU_FAULT_BUS_READ;
    if (cause) {
        end_run(core, cause, pc);
        return;
    }
    core->executed++;
    core->pc += step;
    if (record->unit == UNIT_CONTROL ? !tpu_core_is_at_rest(core) : !tpu_core_dispatch(core, record, field, pc))
        /* The core decodes the next instruction while this one waits for the dispatcher. */
        end_run(core, TPU_FAULT_TIMEOUT, record->opcode == OP_HALT ? pc : pc + step);
    else if (record->opcode == OP_HALT)
        end_run(core, TPU_FAULT_NONE, 0);
}

static void execute(tpu_core *core)
{
    while (core->is_running && !(core->is_waiting && !core->cause))
        if (core->cause)
            end_run(core, core->cause, core->cause_pc);
        else
            execute_one(core);
}

/* Executes the runs of all cores of a ring as far as they can go. */
static void execute_ring(tpu_core *core)
{
    tpu_core *each = core;

    do
        do {
            execute(each);
            each = each->next;
        } while (each != core);
    while (tpu_core_exchange(core));
}

static void start(tpu_core *core)
{
    uint32_t offset;

    for (offset = TPU_REG_CYCLES; offset <= TPU_REG_WRITE_BEATS; offset += 4)
        core->value[offset / 4] = 0;
    REGISTER(core, RING_SENT) = REGISTER(core, RING_RECEIVED) = 0;
    REGISTER(core, STATUS) = TPU_STATUS_RUNNING_MASK;
    tpu_core_empty_queues(core);
    core->pc = REGISTER(core, PC);
    core->executed = core->silent = core->cause = 0;
    core->looks = LOOKS;
    core->is_running = 1;
    if (REGISTER(core, TIMEOUT) < MEMORY_LATENCY)
        end_run(core, TPU_FAULT_TIMEOUT, core->pc);
    execute_ring(core);
}

static void reset(tpu_core *core)
{
    int was_running = core->is_running || core->looks;

    core->is_running = core->is_waiting = 0;
    core->looks = 0;
    REGISTER(core, STATUS) = TPU_STATUS_QUIET_MASK;
    REGISTER(core, INTERRUPT) &= TPU_INTERRUPT_ENABLE_MASK;
    REGISTER(core, FAULT_CAUSE) = REGISTER(core, FAULT_PC) = 0;
    guard_ring(core, was_running);
}

/* Gives up waiting for other cores. */
static void give_up(tpu_core *core)
{
    core->is_waiting = 0;
    execute_ring(core);
}

void tpu_core_wait(void *context)
{
    tpu_core *core = context;

    core->looks = 0;
    if (core->is_waiting)
        give_up(core);
}

/* One look at the status: a cycle passes in a run. */
static uint32_t look(tpu_core *core)
{
    if (core->is_waiting && ++core->silent >= REGISTER(core, TIMEOUT))
        give_up(core);
    if (!core->looks && !core->is_running)
        return REGISTER(core, STATUS);
    core->looks -= core->looks > 0;
    REGISTER(core, CYCLES)++;
    REGISTER(core, STALL_FETCH)++;
    return TPU_STATUS_RUNNING_MASK;
}

uint32_t tpu_core_read(void *context, uint32_t offset)
{
    tpu_core *core = context;
    int has_ring = (core->config.features & TPU_FEATURES_RING_MASK) != 0;

    switch (offset) {
    case TPU_REG_STATUS:
        return look(core);
    case TPU_REG_RING:
        return has_ring ? REGISTER(core, RING) : 0;
    case TPU_REG_RING_STATE:
        return has_ring && core->is_refused ? TPU_RING_STATE_REFUSED_MASK : 0;
    default:
        return offset < TPU_REGISTER_BYTES ? core->value[offset / 4] : 0;
    }
}

static void command(tpu_core *core, uint32_t value)
{
    if (value & TPU_CONTROL_RESET_MASK)
        reset(core);
    else if (value & TPU_CONTROL_START_MASK && !core->is_running && !core->looks &&
             !(REGISTER(core, STATUS) & TPU_STATUS_FAULT_MASK))
        start(core);
}

void tpu_core_write(void *context, uint32_t offset, uint32_t value)
{
    tpu_core *core = context;
    uint32_t region = (offset - TPU_REG_MODEL_BASE_LOW) / TPU_REGION_STEP;

    if (offset == TPU_REG_CONTROL)
        command(core, value);
    else if (offset == TPU_REG_INTERRUPT)
        REGISTER(core, INTERRUPT) = (value & TPU_INTERRUPT_ENABLE_MASK) |
                                    (REGISTER(core, INTERRUPT) & ~value & TPU_INTERRUPT_PENDING_MASK);
    else if (offset == TPU_REG_RING && core->config.features & TPU_FEATURES_RING_MASK) {
        REGISTER(core, RING) = value;
        guard_ring(core, 0);
    } else if (offset == TPU_REG_TIMEOUT || offset == TPU_REG_PC ||
               (offset >= TPU_REG_MODEL_BASE_LOW && region < TPU_REGIONS && offset % TPU_REGION_STEP < 12))
        core->value[offset / 4] = value;
}

int tpu_core_irq(const tpu_core *core)
{
    return REGISTER(core, INTERRUPT) == (TPU_INTERRUPT_ENABLE_MASK | TPU_INTERRUPT_PENDING_MASK);
}

uint32_t tpu_core_executed(const tpu_core *core)
{
    return core->executed;
}

void *tpu_core_bits(tpu_core *core, enum tpu_core_space space)
{
    switch (space) {
    case TPU_CORE_BUFFER:
        return core->buffer;
    case TPU_CORE_SUMS:
        return core->sums;
    case TPU_CORE_BIASES:
        return core->bias;
    case TPU_CORE_UPDATES:
        return core->updates;
    default:
        return core->table;
    }
}
