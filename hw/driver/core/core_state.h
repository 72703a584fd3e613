/* The state of a core, and the functions of the other files. */

#ifndef CORE_STATE_H
#define CORE_STATE_H

#include "tpu_core.h"

#include "core_isa.h"

/* MATMUL processes ROWS vectors at a time, in COLUMNS columns. */
#define ROWS 4u
#define COLUMNS 4u
#define MOST_N 128u

/* Rows, or bytes of a region, from the first to the last, that an instruction reads or writes. */
typedef struct core_range {
    uint64_t first, last;
    int is_used, writes;
} core_range;

enum { RANGES = SPACES + TPU_REGIONS };

/* An instruction in flight, in one of the slots. */
typedef struct core_operation {
    const core_record *record;
    uint32_t field[FIELDS], pc;
    core_range range[RANGES];
    uint32_t waits_for; /* slots, as a mask, of operations that must end first */
    uint64_t passes;    /* of a MATMUL: passes that have not begun */
    uint64_t tiles;     /* of a MATMUL: tiles still to be taken; of a LOAD_WEIGHTS: tiles requested up to its last one */
    int is_live, has_begun, is_foreign; /* foreign: a RING that has begun and needs other cores to end */
} core_operation;

typedef struct core_queue {
    uint8_t slot[MOST_IN_FLIGHT];
    uint32_t length;
} core_queue;

struct tpu_core {
    tpu_core_config config;
    uint32_t n, width, bus_bytes, in_flight; /* width: columns of a tile in memory: n, or COLUMNS in a narrower core */
    core_record record[OPCODES];     /* without the fields and codes that the core lacks */
    uint8_t reserved[OPCODES][32];   /* bits of the word that must be 0 */
    tpu_core_memory *memory;
    void *context;

    uint16_t *buffer, *updates;      /* updates: three vectors a row, in the order of UpdatePart */
    uint32_t *sums, *bias;
    uint16_t table[TABLE_WORDS];
    uint32_t settings[FIELDS];       /* fields of the last LOAD_TABLE */
    uint16_t *fifo;                  /* weight tiles, [row][column] */
    uint64_t fifo_room, fifo_first, fifo_tiles;
    float *tile, *operands;          /* the array's weights, [row][column], and four vectors */
    int tile_least, tile_most;       /* biased exponents of the array's weights without zeros */

    core_operation slot[MOST_IN_FLIGHT];
    core_queue queue[UNITS];
    uint64_t requested, coming, taken; /* tiles of dispatched LOAD_WEIGHTS; of those that have begun; used by MATMULs */
    uint64_t tile_vectors;             /* of the largest tile of a LOAD_WEIGHTS in this run */

    uint32_t value[TPU_REGISTER_BYTES / 4]; /* registers, as they read */
    int is_running, is_refused, is_waiting; /* waiting: a RING has begun, and waits for other cores */
    uint32_t pc, executed, looks, silent;   /* looks at the status during which an executed run still shows as running */
    uint32_t cause, cause_pc;               /* of a fault of an instruction in flight */
    tpu_core *next;                         /* in the ring */
};

#define REGISTER(core, name) ((core)->value[TPU_REG_##name / 4])

/* core_checks.c: an instruction's fields. Returns its fault, or TPU_FAULT_NONE. */
void tpu_core_narrow_records(tpu_core *core);
uint32_t tpu_core_decode(const tpu_core *core, const uint8_t *word, const core_record **record, uint32_t *field);
uint64_t tpu_core_host_bytes(const tpu_core *core, const core_record *record, const uint32_t *field);
uint64_t tpu_core_span_length(const core_span *span, const uint32_t *field, uint32_t cores);
uint64_t tpu_core_region_bytes(const tpu_core *core, uint32_t region);
uint32_t tpu_core_ring_size(const tpu_core *core);

/* core_weights.c: tiles in OCP MX formats. The second function returns the number of bytes of the codes. */
uint64_t tpu_core_coded_vectors(uint32_t n, uint32_t format, uint32_t tiles);
uint32_t tpu_core_decode_tile(uint16_t *weights, const uint8_t *scales, const uint8_t *codes, uint32_t n, uint32_t format);

/* core_progress.c: returns 0 if the instruction can never be dispatched. */
void tpu_core_empty_queues(tpu_core *core);
int tpu_core_is_at_rest(const tpu_core *core);
int tpu_core_dispatch(tpu_core *core, const core_record *record, const uint32_t *field, uint32_t pc);
void tpu_core_end_ring(tpu_core *core);

/* The effects of instructions: core_moves.c, core_matmul.c, core_results.c, core_softmax.c, core_normalize.c. */
void *tpu_core_host(tpu_core *core, uint32_t region, uint32_t offset, uint64_t bytes, int writes);
void tpu_core_act(tpu_core *core, const core_operation *operation);
void tpu_core_matmul(tpu_core *core, const uint32_t *field);
void tpu_core_result(tpu_core *core, uint32_t opcode, const uint32_t *field);
void tpu_core_write_result(tpu_core *core, uint32_t row, uint32_t lane, uint32_t bits, uint32_t format);
void tpu_core_softmax(tpu_core *core, const uint32_t *field);
void tpu_core_normalize(tpu_core *core, const uint32_t *field);

/* core_ring.c: the first function begins a RING; the second returns 1 if cores that waited for each other can go on. */
void tpu_core_ring(tpu_core *core);
int tpu_core_exchange(tpu_core *core);

#endif
