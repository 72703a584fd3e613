/* Transfers between host memory and the core, and the effect of each opcode. */

#include <stdlib.h>
#include <string.h>

#include "core_numbers.h"
#include "core_state.h"

void *tpu_core_arrays(void *map, uint64_t address, uint64_t bytes, int writes)
{
    const tpu_core_map *arrays = map;
    uint32_t i;

    (void)writes;
    for (i = 0; i < arrays->arrays; i++) {
        const tpu_core_array *array = &arrays->array[i];

        if (address >= array->address && bytes <= array->bytes && address - array->address <= array->bytes - bytes)
            return (uint8_t *)array->place + (address - array->address);
    }
    return 0;
}

/* Returns the place of bytes of a region, and counts the beats of the bus; 0 after an error response. */
void *tpu_core_host(tpu_core *core, uint32_t region, uint32_t offset, uint64_t bytes, int writes)
{
    const uint32_t *base = &REGISTER(core, MODEL_BASE_LOW) + region * (TPU_REGION_STEP / 4);
    uint32_t beats = (uint32_t)(bytes / core->bus_bytes);

    if (writes)
        REGISTER(core, WRITE_BEATS) += beats;
    else
        REGISTER(core, READ_BEATS) += beats;
    return core->memory(core->context, ((uint64_t)base[1] << 32 | base[0]) + offset, bytes, writes);
}

/* Returns the host memory of a transfer. After an error, enters the fault and returns 0. */
static uint8_t *transferred(tpu_core *core, const core_operation *operation)
{
    int writes = operation->record->transfer == WRITES_HOST;
    uint64_t bytes = tpu_core_host_bytes(core, operation->record, operation->field);
    uint8_t *host = tpu_core_host(core, operation->field[F_REGION], operation->field[F_OFFSET], bytes, writes);

    if (!host) {
        core->cause = writes ? TPU_FAULT_BUS_WRITE : TPU_FAULT_BUS_READ;
        core->cause_pc = operation->pc;
    }
    return host;
}

static void load(tpu_core *core, const core_operation *operation)
{
    const uint8_t *host = transferred(core, operation);
    const uint32_t *field = operation->field;
    uint32_t n = core->n, row, lane;
    uint16_t *buffer = core->buffer + field[F_BUFFER] * n;

    for (row = 0; host && row < field[F_ROWS]; row++)
        for (lane = 0; lane < n; lane++, host += 2)
            if (field[F_TRANSPOSE])
                buffer[(row / n * n + lane) * n + row % n] = get16(host);
            else
                buffer[row * n + lane] = get16(host);
}

static void load_bias(tpu_core *core, const core_operation *operation)
{
    const uint8_t *host = transferred(core, operation);
    const uint32_t *field = operation->field;
    uint32_t *bias = core->bias + field[F_BIAS] * core->n, *end = bias + field[F_ROWS] * core->n;

    for (; host && bias < end; bias++) {
        if (field[F_HALF] != HALF_UPPER) {
            *bias = (*bias & 0xFFFF0000u) | get16(host);
            host += 2;
        }
        if (field[F_HALF] != HALF_LOWER) {
            *bias = (*bias & 0xFFFFu) | (uint32_t)get16(host) << 16;
            host += 2;
        }
    }
}

/* Makes room for further tiles behind the tiles in the FIFO. Returns 0 if the host has no memory left. */
static int make_room(tpu_core *core, uint32_t tiles)
{
    uint64_t size = (uint64_t)core->n * core->n, needed = core->fifo_tiles + tiles;
    uint16_t *fifo = core->fifo;

    if (core->fifo_tiles && core->fifo_first)
        memmove(fifo, fifo + core->fifo_first * size, (size_t)(core->fifo_tiles * size) * sizeof *fifo);
    core->fifo_first = 0;
    if (needed > core->fifo_room) {
        fifo = needed < SIZE_MAX / (2 * size * sizeof *fifo) ? realloc(fifo, (size_t)(2 * needed * size) * sizeof *fifo) : 0;
        if (!fifo)
            return 0;
        core->fifo = fifo;
        core->fifo_room = 2 * needed;
    }
    return 1;
}

static void load_weights(tpu_core *core, const core_operation *operation)
{
    const uint8_t *host = transferred(core, operation);
    const uint32_t *field = operation->field;
    uint32_t n = core->n, format = field[F_WEIGHT_FORMAT], tile, vector, lane;
    const uint8_t *scales = host;
    uint16_t *weights;

    if (!host)
        return;
    if (!make_room(core, field[F_ROWS])) {
        core->cause = TPU_FAULT_BUS_READ;
        core->cause_pc = operation->pc;
        return;
    }
    for (tile = 0; tile < field[F_ROWS]; tile++) {
        weights = core->fifo + (core->fifo_first + core->fifo_tiles++) * n * n;
        if (format != WEIGHT_BFLOAT16) {
            if (tile % 2 == 0) {
                scales = host;
                host += 2 * n;
            }
            host += tpu_core_decode_tile(weights, scales + tile % 2 * n, host, n, format);
            continue;
        }
        for (vector = 0; vector < n; vector++)
            for (lane = 0; lane < n; lane++, host += 2)
                weights[field[F_TRANSPOSE] ? vector * n + lane : lane * n + vector] = get16(host);
    }
}

static void store(tpu_core *core, const core_operation *operation)
{
    uint8_t *host = transferred(core, operation);
    const uint32_t *field = operation->field;
    uint32_t n = core->n, row, lane;

    for (row = 0; host && row < field[F_ROWS]; row++) {
        const uint16_t *vector = core->buffer + (field[F_BUFFER] + row) * n;

        if (operation->record->opcode == OP_STORE_UPDATE)
            vector = core->updates + ((field[F_UPDATE] + row) * 3 + field[F_PART] - 1) * n;
        for (lane = 0; lane < n; lane++, host += 2)
            put16(host, vector[lane]);
    }
}

void tpu_core_act(tpu_core *core, const core_operation *operation)
{
    switch (operation->record->opcode) {
    case OP_LOAD:
        load(core, operation);
        break;
    case OP_LOAD_BIAS:
        load_bias(core, operation);
        break;
    case OP_LOAD_WEIGHTS:
        load_weights(core, operation);
        break;
    case OP_STORE:
    case OP_STORE_UPDATE:
        store(core, operation);
        break;
    case OP_MATMUL:
        tpu_core_matmul(core, operation->field);
        break;
    case OP_RING:
        tpu_core_ring(core);
        break;
    default:
        tpu_core_result(core, operation->record->opcode, operation->field);
    }
}
