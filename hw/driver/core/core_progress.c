/* The instructions in flight: which can end, without time. sim/golden/progress.py has the definition.

   An instruction takes effect when it ends; LOAD_WEIGHTS when it begins. LOAD_WEIGHTS ends when its last tile fits the FIFO. */

#include <string.h>

#include "core_state.h"

static core_operation *first_of(tpu_core *core, uint32_t unit)
{
    return &core->slot[core->queue[unit].slot[0]];
}

void tpu_core_empty_queues(tpu_core *core)
{
    memset(core->slot, 0, sizeof core->slot);
    memset(core->queue, 0, sizeof core->queue);
    core->requested = core->coming = core->taken = 0;
    core->tile_vectors = 1;
    core->fifo_first = core->fifo_tiles = 0;
}

int tpu_core_is_at_rest(const tpu_core *core)
{
    uint32_t unit;

    for (unit = 0; unit < UNITS; unit++)
        if (core->queue[unit].length)
            return 0;
    return 1;
}

static void add_range(core_range *range, uint64_t first, uint64_t length, int writes)
{
    if (!range->is_used || first < range->first)
        range->first = first;
    if (!range->is_used || first + length - 1 > range->last)
        range->last = first + length - 1;
    range->is_used = 1;
    range->writes |= writes;
}

/* Enters the memory that an operation accesses. The function table is left out: only one unit uses it. */
static void find_ranges(const tpu_core *core, core_operation *operation)
{
    const core_record *record = operation->record;
    const uint32_t *field = operation->field;
    uint32_t i;

    memset(operation->range, 0, sizeof operation->range);
    for (i = 0; i < record->spans; i++) {
        const core_span *span = &record->span[i];

        if (span->space != SPACE_TABLE && (!span->only_if || field[span->only_if]))
            add_range(&operation->range[span->space], field[span->base],
                      tpu_core_span_length(span, field, tpu_core_ring_size(core)), span->writes);
    }
    if (record->transfer != NO_TRANSFER)
        add_range(&operation->range[SPACES + field[F_REGION]], field[F_OFFSET], tpu_core_host_bytes(core, record, field),
                  record->transfer == WRITES_HOST);
}

static int conflict(const core_operation *one, const core_operation *other)
{
    uint32_t i;

    for (i = 0; i < RANGES; i++) {
        const core_range *a = &one->range[i], *b = &other->range[i];

        if (a->is_used && b->is_used && (a->writes || b->writes) && a->first <= b->last && b->first <= a->last)
            return 1;
    }
    return 0;
}

/* Advances the first operation of a unit as far as possible. Returns 1 if it ends. */
static int ends(tpu_core *core, core_operation *operation)
{
    uint64_t count;

    if (operation->record->unit == UNIT_WEIGHTS) {
        if (!operation->has_begun) {
            operation->has_begun = 1;
            core->coming = operation->tiles;
            tpu_core_act(core, operation);
        }
        /* The array holds one tile more; so does the buffer of a core that decodes weights, in tiles of the largest size. */
        count = core->config.features & TPU_FEATURES_WEIGHT_FORMATS_MASK ? WEIGHT_BUFFER / core->tile_vectors : 0;
        return operation->tiles <= core->taken + 1 + core->config.weight_fifo_depth + count;
    }
    if (operation->record->unit == UNIT_RING) {
        if (!operation->has_begun) {
            operation->has_begun = 1;
            tpu_core_act(core, operation);
            operation->is_foreign = core->is_waiting;
        }
        return !operation->is_foreign;
    }
    if (operation->tiles) {
        count = core->coming - core->taken;
        count = operation->tiles < count ? operation->tiles : count;
        core->taken += count;
        operation->tiles -= count;
        operation->passes -= count;
    }
    if (operation->tiles)
        return 0;
    tpu_core_act(core, operation);
    return 1;
}

static void remove_first(tpu_core *core, uint32_t unit)
{
    core_queue *queue = &core->queue[unit];
    uint32_t slot = queue->slot[0], other;

    queue->length--;
    memmove(queue->slot, queue->slot + 1, queue->length);
    core->slot[slot].is_live = 0;
    for (other = 0; other < MOST_IN_FLIGHT; other++)
        core->slot[other].waits_for &= ~(1u << slot);
}

/* Advances all operations as far as they can go. */
static void advance(tpu_core *core)
{
    uint64_t taken;
    uint32_t unit, ended;

    do {
        taken = core->taken;
        ended = 0;
        for (unit = 0; unit < UNITS; unit++)
            while (core->queue[unit].length && !core->cause && !first_of(core, unit)->waits_for &&
                   ends(core, first_of(core, unit))) {
                remove_first(core, unit);
                ended++;
            }
    } while (ended || taken != core->taken);
}

/* Returns 1 if the queue of a unit, or the unit itself, has room for one operation more. */
static int has_room(tpu_core *core, uint32_t unit)
{
    const core_queue *queue = &core->queue[unit];
    uint32_t waiting = queue->length, i;
    uint64_t ready = 0;

    if ((unit == UNIT_WEIGHTS || unit == UNIT_RING) && queue->length && first_of(core, unit)->has_begun)
        /* The unit executes the first, and holds the second at its input, unless the second waits for another unit. */
        waiting -= queue->length > 1 && !core->slot[queue->slot[1]].waits_for ? 2 : 1;
    else if (unit == UNIT_MATMUL)
        for (i = 0; i < queue->length; i++) {
            waiting -= ready < READY_PASSES;
            ready += core->slot[queue->slot[i]].passes;
        }
    return waiting < QUEUE_DEPTH;
}

int tpu_core_dispatch(tpu_core *core, const core_record *record, const uint32_t *field, uint32_t pc)
{
    uint32_t in_flight = 0, free = 0, i;
    uint64_t vectors;
    core_operation *operation;

    for (i = MOST_IN_FLIGHT; i-- > 0;)
        if (core->slot[i].is_live)
            in_flight++;
        else
            free = i;
    if (in_flight == core->in_flight || !has_room(core, record->unit))
        return 0;
    operation = &core->slot[free];
    memset(operation, 0, sizeof *operation);
    operation->record = record;
    operation->pc = pc;
    memcpy(operation->field, field, sizeof operation->field);
    find_ranges(core, operation);
    if (record->unit == UNIT_WEIGHTS) {
        core->requested += field[F_ROWS];
        vectors = field[F_WEIGHT_FORMAT] == WEIGHT_BFLOAT16 ? core->n :
                  tpu_core_coded_vectors(core->n, field[F_WEIGHT_FORMAT], 1);
        core->tile_vectors = vectors > core->tile_vectors ? vectors : core->tile_vectors;
        operation->tiles = core->requested;
    } else if (record->unit == UNIT_MATMUL) {
        operation->passes = (uint64_t)field[F_TILES0] * field[F_TILES1];
        operation->tiles = field[F_KEEP] ? 0 : operation->passes;
    }
    for (i = 0; i < MOST_IN_FLIGHT; i++)
        if (core->slot[i].is_live && core->slot[i].record->unit != record->unit && conflict(operation, &core->slot[i]))
            operation->waits_for |= 1u << i;
    operation->is_live = 1;
    core->queue[record->unit].slot[core->queue[record->unit].length++] = (uint8_t)free;
    advance(core);
    return 1;
}

/* Resumes the RING that began last: its data from the other cores has arrived. */
void tpu_core_end_ring(tpu_core *core)
{
    core->is_waiting = 0;
    first_of(core, UNIT_RING)->is_foreign = 0;
    advance(core);
}
