/* The core: registers and runs. See tpu.h. */

#include "tpu.h"

/* --- Registers --- */

static uint32_t read_register(const tpu *core, uint32_t offset)
{
    const tpu_port *port = core->port;

    if (port->read)
        return port->read(port->context, offset);
    return ((volatile const uint32_t *)port->context)[offset / 4];
}

static void write_register(const tpu *core, uint32_t offset, uint32_t value)
{
    const tpu_port *port = core->port;

    if (port->write)
        port->write(port->context, offset, value);
    else
        ((volatile uint32_t *)port->context)[offset / 4] = value;
}

static void fence(const tpu *core)
{
    if (core->port->fence)
        core->port->fence(core->port->context);
}

/* Writes a register, and checks that it holds the value. */
static enum tpu_error set_register(const tpu *core, uint32_t offset, uint32_t value)
{
    write_register(core, offset, value);
    return read_register(core, offset) == value ? TPU_OK : TPU_ERROR_DEAD_BUS;
}

/* Returns OK if `holds` is not 0. Otherwise, records the needed and the found value of a register, and returns `error`. */
static enum tpu_error expect(tpu *core, int holds, enum tpu_error error, uint32_t offset, uint32_t needed, uint32_t found)
{
    if (holds)
        return TPU_OK;
    core->register_offset = offset;
    core->needed = needed;
    core->found = found;
    return error;
}

#define STATUS_ENDED (TPU_STATUS_DONE_MASK | TPU_STATUS_FAULT_MASK)
#define STATUS_STATES (STATUS_ENDED | TPU_STATUS_RUNNING_MASK)

/* Reads the status. Returns DEAD_BUS if no core has this status: a bit that does not exist is 1, or two of three states. */
static enum tpu_error read_status(const tpu *core, uint32_t *status)
{
    uint32_t state;

    *status = read_register(core, TPU_REG_STATUS);
    state = *status & STATUS_STATES;
    if ((*status & ~(STATUS_STATES | TPU_STATUS_QUIET_MASK)) || (state & (state - 1)))
        return TPU_ERROR_DEAD_BUS;
    return TPU_OK;
}

static enum tpu_error check_idle(const tpu *core)
{
    uint32_t status;
    enum tpu_error error = read_status(core, &status);

    if (!error && (status & TPU_STATUS_RUNNING_MASK))
        error = TPU_ERROR_BUSY;
    return error;
}

/* --- Before the first run --- */

enum tpu_error tpu_open(tpu *core, const tpu_port *port)
{
    uint32_t found, major = TPU_INTERFACE_VERSION >> 16;
    enum tpu_error error;

    core->port = port;
    core->version = core->bus_bytes = core->register_offset = core->needed = core->found = core->cause = core->pc = 0;
    core->quiet = 1;
    found = read_register(core, TPU_REG_ID);
    error = expect(core, found == TPU_IDENTIFIER, TPU_ERROR_NO_CORE, TPU_REG_ID, TPU_IDENTIFIER, found);
    if (error)
        return error;
    core->version = read_register(core, TPU_REG_VERSION);
    error = expect(core, core->version >> 16 == major, TPU_ERROR_VERSION, TPU_REG_VERSION, TPU_INTERFACE_VERSION, core->version);
    if (error)
        return error;
    found = read_register(core, TPU_REG_CONFIG);
    core->bus_bytes = (found & TPU_CONFIG_BUS_BYTES_MASK) >> TPU_CONFIG_BUS_BYTES_SHIFT;
    return expect(core, core->bus_bytes && !(core->bus_bytes & (core->bus_bytes - 1)), TPU_ERROR_NO_CORE, TPU_REG_CONFIG, 4,
                  found);
}

/* Checks the register `config`. */
static enum tpu_error check_config(tpu *core, const tpu_needs *needs)
{
    uint32_t config = read_register(core, TPU_REG_CONFIG);
    uint32_t n = (config & TPU_CONFIG_N_MASK) >> TPU_CONFIG_N_SHIFT;
    uint32_t bus = (config & TPU_CONFIG_BUS_BYTES_MASK) >> TPU_CONFIG_BUS_BYTES_SHIFT;
    uint32_t in_flight = (config & TPU_CONFIG_IN_FLIGHT_MASK) >> TPU_CONFIG_IN_FLIGHT_SHIFT;
    enum tpu_error error;

    error = expect(core, n == needs->n, TPU_ERROR_CONFIGURATION, TPU_REG_CONFIG, needs->n, n);
    if (!error) /* on a bus wider than 32 bytes, each instruction takes a beat */
        error = expect(core, bus == needs->bus_bytes || (bus && bus < needs->bus_bytes && needs->bus_bytes <= 32),
                       TPU_ERROR_CONFIGURATION, TPU_REG_CONFIG, needs->bus_bytes, bus);
    if (!error)
        error = expect(core, in_flight >= needs->in_flight, TPU_ERROR_CONFIGURATION, TPU_REG_CONFIG, needs->in_flight, in_flight);
    return error;
}

/* Each field of `features` is one bit, or a number that must not be 0. */
static enum tpu_error check_features(tpu *core, uint32_t needed)
{
    uint32_t found = read_register(core, TPU_REG_FEATURES);
    uint32_t tables = TPU_FEATURES_TABLE_LANES_MASK, updates = TPU_FEATURES_UPDATE_LANES_MASK;
    uint32_t bits = needed & ~(tables | updates);
    int lanes = (!(needed & tables) || (found & tables)) && (!(needed & updates) || (found & updates));

    return expect(core, (found & bits) == bits && lanes, TPU_ERROR_CONFIGURATION, TPU_REG_FEATURES, needed, found);
}

enum tpu_error tpu_check(tpu *core, const tpu_model *model)
{
    const tpu_needs *needs = &model->needs;
    const uint32_t depths[][2] = {
        {TPU_REG_UNIFIED_BUFFER_DEPTH, needs->unified_buffer_depth},
        {TPU_REG_ACCUMULATOR_DEPTH, needs->accumulator_depth},
        {TPU_REG_BIAS_DEPTH, needs->bias_depth},
        {TPU_REG_WEIGHT_FIFO_DEPTH, needs->weight_fifo_depth},
    };
    uint32_t found, i;
    enum tpu_error error;

    error = tpu_check_header(model);
    if (error)
        return error;
    if (read_register(core, TPU_REG_ID) != TPU_IDENTIFIER)
        return TPU_ERROR_DEAD_BUS;
    found = core->version;
    error = expect(core, found >> 16 == needs->version >> 16 && found >= needs->version, TPU_ERROR_VERSION, TPU_REG_VERSION,
                   needs->version, found);
    if (!error)
        error = check_config(core, needs);
    for (i = 0; !error && i < sizeof depths / sizeof depths[0]; i++) {
        found = read_register(core, depths[i][0]);
        error = expect(core, found >= depths[i][1], TPU_ERROR_CONFIGURATION, depths[i][0], depths[i][1], found);
    }
    return error ? error : check_features(core, needs->features);
}

static enum tpu_error check_region(const tpu *core, uint64_t address, uint32_t bytes)
{
    if ((address & (core->bus_bytes - 1)) || address + bytes < address)
        return TPU_ERROR_ADDRESS;
    return TPU_OK;
}

enum tpu_error tpu_place_region(tpu *core, uint32_t region, uint64_t address, uint32_t bytes)
{
    uint32_t step = region * TPU_REGION_STEP;
    enum tpu_error error = region < TPU_REGIONS ? check_region(core, address, bytes) : TPU_ERROR_ARGUMENT;

    if (!error)
        error = check_idle(core);
    if (!error)
        error = set_register(core, TPU_REG_MODEL_BASE_LOW + step, (uint32_t)address);
    if (!error)
        error = set_register(core, TPU_REG_MODEL_BASE_HIGH + step, (uint32_t)(address >> 32));
    if (!error)
        error = set_register(core, TPU_REG_MODEL_SIZE + step, bytes);
    return error;
}

enum tpu_error tpu_place(tpu *core, const tpu_model *model, const tpu_places *places)
{
    const uint64_t first[TPU_REGIONS] = {places->model, places->input, places->output,
                                         model->scratch_bytes ? places->scratch : 0};
    const uint32_t bytes[TPU_REGIONS] = {model->image_bytes, model->input_bytes, model->output_bytes, model->scratch_bytes};
    uint32_t one, other;
    enum tpu_error error = TPU_OK;

    for (one = 0; one < TPU_REGIONS; one++) {
        if (check_region(core, first[one], bytes[one]))
            return TPU_ERROR_ADDRESS;
        for (other = 0; other < one; other++)
            if (first[one] < first[other] + bytes[other] && first[other] < first[one] + bytes[one])
                return TPU_ERROR_ADDRESS;
    }
    for (one = 0; !error && one < TPU_REGIONS; one++)
        error = tpu_place_region(core, one, first[one], bytes[one]);
    return error;
}

enum tpu_error tpu_set_timeout(tpu *core, uint32_t cycles)
{
    enum tpu_error error = check_idle(core);

    return error ? error : set_register(core, TPU_REG_TIMEOUT, cycles);
}

/* --- Runs --- */

enum tpu_error tpu_start(tpu *core)
{
    uint32_t status;
    enum tpu_error error = read_status(core, &status);

    if (error)
        return error;
    if (status & TPU_STATUS_RUNNING_MASK)
        return TPU_ERROR_BUSY;
    if (status & TPU_STATUS_FAULT_MASK)
        return TPU_ERROR_NOT_RECOVERED;
    error = set_register(core, TPU_REG_PC, 0);
    if (error)
        return error;
    fence(core);
    write_register(core, TPU_REG_INTERRUPT, TPU_INTERRUPT_PENDING_MASK | (core->port->wait ? TPU_INTERRUPT_ENABLE_MASK : 0));
    write_register(core, TPU_REG_CONTROL, TPU_CONTROL_START_MASK);
    return TPU_OK;
}

void tpu_interrupt(tpu *core)
{
    write_register(core, TPU_REG_INTERRUPT, TPU_INTERRUPT_PENDING_MASK);
}

/* Polls the status until the bus is idle and none of `states` is set, at most `polls` + 1 times: DEAD_MEMORY, DEAD_BUS. */
static enum tpu_error wait_for_rest(tpu *core, uint32_t polls, uint32_t states)
{
    uint32_t status;
    enum tpu_error error;

    core->quiet = 0;
    do {
        error = read_status(core, &status);
        if (error)
            return error;
        if ((status & TPU_STATUS_QUIET_MASK) && !(status & states)) {
            core->quiet = 1;
            return TPU_OK;
        }
    } while (polls--);
    return status & states ? TPU_ERROR_DEAD_BUS : TPU_ERROR_DEAD_MEMORY;
}

/* Reads the fault that ended a run. Returns its error. */
static enum tpu_error take_fault(tpu *core, uint32_t polls)
{
    enum tpu_error error;

    core->cause = read_register(core, TPU_REG_FAULT_CAUSE);
    core->pc = read_register(core, TPU_REG_FAULT_PC);
    error = wait_for_rest(core, polls, 0);
    if (error == TPU_ERROR_DEAD_BUS || (error && core->cause == TPU_FAULT_TIMEOUT))
        return error;
    switch (core->cause) {
    case TPU_FAULT_ILLEGAL:
        return TPU_ERROR_ILLEGAL;
    case TPU_FAULT_ADDRESS:
        return TPU_ERROR_RANGE;
    case TPU_FAULT_LENGTH:
        return TPU_ERROR_LENGTH;
    case TPU_FAULT_BUS_READ:
        return TPU_ERROR_BUS_READ;
    case TPU_FAULT_BUS_WRITE:
        return TPU_ERROR_BUS_WRITE;
    case TPU_FAULT_TIMEOUT:
        return TPU_ERROR_TIMEOUT;
    case TPU_FAULT_RING:
        return TPU_ERROR_RING;
    default:
        return TPU_ERROR_FAULT;
    }
}

enum tpu_error tpu_wait(tpu *core, uint32_t polls)
{
    const tpu_port *port = core->port;
    uint32_t left = polls, cycles = read_register(core, TPU_REG_CYCLES), status;
    enum tpu_error error;

    for (;;) {
        error = read_status(core, &status);
        if (error)
            return error;
        if (status & STATUS_ENDED)
            break;
        if (!left--) /* a run counts its cycles */
            return read_register(core, TPU_REG_CYCLES) != cycles ? TPU_ERROR_LIMIT : TPU_ERROR_DEAD_BUS;
        if (port->wait)
            port->wait(port->context);
    }
    tpu_interrupt(core);
    if (status & TPU_STATUS_FAULT_MASK)
        error = take_fault(core, polls);
    fence(core);
    return error;
}

enum tpu_error tpu_run(tpu *core, uint32_t polls)
{
    enum tpu_error error = tpu_start(core);

    return error ? error : tpu_wait(core, polls);
}

enum tpu_error tpu_recover(tpu *core, uint32_t polls)
{
    write_register(core, TPU_REG_CONTROL, TPU_CONTROL_RESET_MASK);
    tpu_interrupt(core);
    return wait_for_rest(core, polls, STATUS_STATES);
}

enum tpu_error tpu_flush_ring(tpu *const *cores, uint32_t count, uint32_t looks)
{
    const uint32_t steps[] = {TPU_RING_FLUSH_MASK, 0};
    uint32_t step, look, i, state = 0;
    enum tpu_error error = TPU_OK;

    for (i = 0; !error && i < count; i++)
        error = check_idle(cores[i]);
    for (step = 0; step < 2; step++) {
        for (i = 0; !error && i < count; i++)
            error = set_register(cores[i], TPU_REG_RING, i << TPU_RING_RANK_SHIFT | count << TPU_RING_SIZE_SHIFT | steps[step]);
        for (look = 0; !error && look < looks; look++)
            for (i = 0; i < count; i++)
                (void)read_register(cores[i], TPU_REG_RING_STATE);
    }
    for (i = 0; !error && i < count; i++)
        state |= read_register(cores[i], TPU_REG_RING_STATE);
    return !error && state ? TPU_ERROR_LINK : error;
}

void tpu_read_counters(tpu *core, tpu_counters *counters)
{
    uint32_t i;

    counters->cycles = read_register(core, TPU_REG_CYCLES);
    counters->busy = read_register(core, TPU_REG_BUSY);
    for (i = 0; i < TPU_STALLS; i++)
        counters->stall[i] = read_register(core, TPU_REG_STALL_FETCH + i * TPU_STALL_STEP);
    counters->read_beats = read_register(core, TPU_REG_READ_BEATS);
    counters->write_beats = read_register(core, TPU_REG_WRITE_BEATS);
}

const char *tpu_text(enum tpu_error error)
{
    switch (error) {
    case TPU_OK:
        return "no error";
    case TPU_ERROR_NO_CORE:
        return "there is no core at this address";
    case TPU_ERROR_VERSION:
        return "the core's version does not fit the driver or the network";
    case TPU_ERROR_CONFIGURATION:
        return "the core's configuration does not fit the network";
    case TPU_ERROR_HEADER:
        return "model.h was changed after it was written";
    case TPU_ERROR_IMAGE:
        return "the image does not match model.h";
    case TPU_ERROR_ADDRESS:
        return "a region is not aligned to the bus beat, or overlaps another";
    case TPU_ERROR_ARGUMENT:
        return "no such region or sample";
    case TPU_ERROR_BUSY:
        return "a run is in progress";
    case TPU_ERROR_NOT_RECOVERED:
        return "the last run ended with a fault, and the core was not recovered";
    case TPU_ERROR_LIMIT:
        return "the run did not end within the limit";
    case TPU_ERROR_DEAD_BUS:
        return "the core's registers do not respond, or never change";
    case TPU_ERROR_DEAD_MEMORY:
        return "the memory does not respond to the core";
    case TPU_ERROR_LINK:
        return "a link between cores is not empty after a flush";
    case TPU_ERROR_FAULT:
        return "the core ended the run with an unknown fault";
    case TPU_ERROR_ILLEGAL:
        return "fault ILLEGAL: the core does not have the instruction";
    case TPU_ERROR_RANGE:
        return "fault ADDRESS: an access outside a region or a memory";
    case TPU_ERROR_LENGTH:
        return "fault LENGTH: an instruction with a count of 0";
    case TPU_ERROR_BUS_READ:
        return "fault BUS_READ: error response to a read";
    case TPU_ERROR_BUS_WRITE:
        return "fault BUS_WRITE: error response to a write";
    case TPU_ERROR_TIMEOUT:
        return "fault TIMEOUT: the core made no progress";
    case TPU_ERROR_RING:
        return "fault RING: no valid position in a ring, links that need a flush, or a neighbour with another RING";
    }
    return "an unknown error";
}
