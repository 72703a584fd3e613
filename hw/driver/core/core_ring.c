/* RING: the exchange between cores, and its order of additions. sim/golden/ring.py and isa_ring.py have the definition. */

#include <stdlib.h>
#include <string.h>

#include "core_numbers.h"
#include "core_state.h"

static const uint32_t *fields_of(const tpu_core *core)
{
    return core->slot[core->queue[UNIT_RING].slot[0]].field;
}

/* Returns row `row` of a segment in the buffer: of the operands, or of the results. */
static uint16_t *vector_of(const tpu_core *core, uint32_t base, uint64_t segment, uint64_t row)
{
    const uint32_t *field = fields_of(core);

    return core->buffer + (field[base] + segment * field[F_STRIDE] + row) * core->n;
}

/* Adds binary32 numbers, as pairs of words with the low half first. */
static void add_words(uint16_t *sums, const uint16_t *more, uint32_t n)
{
    uint32_t lane, sum;

    for (lane = 0; lane < n; lane += 2) {
        sum = sum_of(sums[lane] | (uint32_t)sums[lane + 1] << 16, more[lane] | (uint32_t)more[lane + 1] << 16);
        sums[lane] = (uint16_t)sum;
        sums[lane + 1] = (uint16_t)(sum >> 16);
    }
}

/* Computes row `row` of segment `segment` of the result. */
static void reduce_row(tpu_core *const *cores, uint32_t size, uint32_t segment, uint64_t row, uint16_t *result)
{
    uint32_t n = cores[0]->n, step;

    if (fields_of(cores[0])[F_MODE] == MODE_ALL_GATHER) {
        memcpy(result, vector_of(cores[(segment + size - 1) % size], F_BUFFER, 0, row), n * sizeof *result);
        return;
    }
    memcpy(result, vector_of(cores[segment], F_BUFFER, segment, row), n * sizeof *result);
    for (step = 1; step < size; step++)
        add_words(result, vector_of(cores[(segment + step) % size], F_BUFFER, segment, row), n);
}

static void write_rows(tpu_core *core, uint64_t place, const uint16_t *result, uint64_t rows)
{
    memcpy(vector_of(core, F_RESULT, place, 0), result, (size_t)(rows * core->n) * sizeof *result);
}

/* Lets the cores exchange `rows` rows of each segment. Cores that asked for more do not complete. Returns 0 if the host has no
   memory left. */
static int exchange(tpu_core *const *cores, uint32_t size, uint32_t rounds)
{
    const uint32_t mode = fields_of(cores[0])[F_MODE], n = cores[0]->n;
    uint64_t rows = (uint64_t)rounds * fields_of(cores[0])[F_SEGMENT], row;
    uint16_t *results = malloc((size_t)(size * rows * n) * sizeof *results);
    uint32_t words = (uint32_t)((mode == MODE_ALL_REDUCE ? 2 : 1) * (size - 1) * rows * n / 2), rank, segment;

    if (!results)
        return 0;
    for (segment = 0; segment < size; segment++)
        for (row = 0; row < rows; row++)
            reduce_row(cores, size, segment, row, results + (segment * rows + row) * n);
    for (rank = 0; rank < size; rank++) {
        if (fields_of(cores[rank])[F_ROUNDS] != rounds)
            continue;
        if (mode == MODE_REDUCE_SCATTER)
            write_rows(cores[rank], 0, results + (rank + 1) % size * rows * n, rows);
        else
            for (segment = 0; segment < size; segment++)
                write_rows(cores[rank], segment, results + segment * rows * n, rows);
        REGISTER(cores[rank], RING_SENT) += words;
        REGISTER(cores[rank], RING_RECEIVED) += words;
    }
    free(results);
    return 1;
}

void tpu_core_ring(tpu_core *core)
{
    core->is_waiting = tpu_core_ring_size(core) > 1 || !exchange(&core, 1, fields_of(core)[F_ROUNDS]);
}

/* Enters the cores of the ring by rank. Returns their number, or 0 if their links do not form a ring of their registers. */
static uint32_t find_cores(tpu_core *core, tpu_core **cores)
{
    uint32_t size = tpu_core_ring_size(core), count;

    for (count = 0; count < size; count++, core = core->next) {
        uint32_t rank = REGISTER(core, RING) & TPU_RING_RANK_MASK;

        if (tpu_core_ring_size(core) != size || (REGISTER(core->next, RING) & TPU_RING_RANK_MASK) != (rank + 1) % size)
            return 0;
        cores[rank] = core;
    }
    return core->next == cores[((REGISTER(core, RING) & TPU_RING_RANK_MASK) + 1) % size] ? size : 0;
}

int tpu_core_exchange(tpu_core *core)
{
    tpu_core *cores[MOST_CORES], *each = core;
    uint32_t size, rank, rounds = UINT32_MAX;
    int match = 1;

    do {
        if (!each->is_waiting)
            return 0;
        each = each->next;
    } while (each != core);
    size = find_cores(core, cores);
    for (rank = 0; rank < size; rank++) {
        const uint32_t *field = fields_of(cores[rank]), *first = fields_of(cores[0]);

        match &= field[F_MODE] == first[F_MODE] && field[F_SEGMENT] == first[F_SEGMENT];
        rounds = field[F_ROUNDS] < rounds ? field[F_ROUNDS] : rounds;
    }
    match = match && size && exchange(cores, size, rounds);
    do {
        if (match && fields_of(each)[F_ROUNDS] == rounds)
            tpu_core_end_ring(each);
        else
            each->is_waiting = 0; /* its RING never ends: its program continues until it blocks */
        each = each->next;
    } while (each != core);
    return 1;
}
