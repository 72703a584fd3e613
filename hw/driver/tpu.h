/* Driver for the core: freestanding C99 (also C++), no allocation, no library, no floating-point arithmetic.

   tpu.c has registers and runs, tpu_data.c the data of a network. `tpu compile` writes the files of a network: the header
   model.h, and its region MODEL model.bin. README.md has an example and a table of the errors. Every wait has a limit. */

#ifndef TPU_H
#define TPU_H

#include <stdint.h>

#include "tpu_regs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a function: 0, or the cause of its failure. */
enum tpu_error {
    TPU_OK = 0,
    TPU_ERROR_NO_CORE = 1,       /* the register `id` does not hold the identifier of this core */
    TPU_ERROR_VERSION = 2,       /* the core's version does not fit this driver, or the network */
    TPU_ERROR_CONFIGURATION = 3, /* the core's sizes or features do not fit the network */
    TPU_ERROR_HEADER = 4,        /* model.h was changed after `tpu compile` wrote it */
    TPU_ERROR_IMAGE = 5,         /* the image is not the model.bin that belongs to this model.h */
    TPU_ERROR_ADDRESS = 6,       /* a region is not aligned to the bus beat, ends beyond 2^64, or overlaps another */
    TPU_ERROR_ARGUMENT = 7,      /* no such region, or no such sample in a batch */
    TPU_ERROR_BUSY = 8,          /* a run is in progress */
    TPU_ERROR_NOT_RECOVERED = 9, /* the last run ended with a fault: call tpu_recover first */
    TPU_ERROR_LIMIT = 10,        /* the limit has passed, and the run continues: wait again, or call tpu_recover */
    TPU_ERROR_DEAD_BUS = 11,     /* registers do not respond, or never change: the core has no clock, or its bus is broken */
    TPU_ERROR_DEAD_MEMORY = 12,  /* the memory does not respond to the core: reset both */
    TPU_ERROR_LINK = 13,         /* a link between cores is not empty after a flush */

    /* The core ended the run with a fault: 32 + its cause. tpu.pc is the offset of the instruction. */
    TPU_ERROR_FAULT = 32, /* a cause unknown to this driver: see tpu.cause */
    TPU_ERROR_ILLEGAL = 32 + TPU_FAULT_ILLEGAL,
    TPU_ERROR_RANGE = 32 + TPU_FAULT_ADDRESS,
    TPU_ERROR_LENGTH = 32 + TPU_FAULT_LENGTH,
    TPU_ERROR_BUS_READ = 32 + TPU_FAULT_BUS_READ,
    TPU_ERROR_BUS_WRITE = 32 + TPU_FAULT_BUS_WRITE,
    TPU_ERROR_TIMEOUT = 32 + TPU_FAULT_TIMEOUT,
    TPU_ERROR_RING = 32 + TPU_FAULT_RING
};

/* The access to the core. If `read` or `write` is 0, the driver accesses the registers through a volatile pointer at `context`,
   which must be mapped as a device: not cached, in order. If `wait` or `fence` is 0, it is not called. */
typedef struct tpu_port {
    void *context; /* passed to each function */
    uint32_t (*read)(void *context, uint32_t offset);
    void (*write)(void *context, uint32_t offset, uint32_t value); /* returns after the core has accepted it */
    /* Called between two polls of the status during a run. Returns when `irq` has risen, or after a time that the system chooses.
       If it is set, the core's interrupt is enabled. */
    void (*wait)(void *context);
    /* Called before a run starts and after it has ended: makes memory consistent between CPU and core (fence, caches). */
    void (*fence)(void *context);
} tpu_port;

/* One core. The driver writes all fields. The fields from `register_offset` on describe an error. */
typedef struct tpu {
    const tpu_port *port;
    uint32_t version;
    uint32_t bus_bytes;       /* bytes of one beat: regions begin on multiples */
    uint32_t register_offset; /* after TPU_ERROR_NO_CORE, _VERSION, _CONFIGURATION: the register at fault, */
    uint32_t needed, found;   /* the value, or least value, that it or its field needs, and its value */
    uint32_t cause, pc;       /* of the last fault: TPU_FAULT_*, and the offset of the instruction in region MODEL */
    uint32_t quiet;           /* 1: the bus is idle. 0: stores of the run may still reach memory */
} tpu;

/* --- A compiled network: the structures in model.h --- */

#define TPU_MODEL_FORMAT 2
#define TPU_LOOPS 4

/* Values of a sample and their places: for all l[i] < count[i], value `value + sum of l[i] value_step[i]` of the sample is
   element `place + sum of l[i] place_step[i]` of the region. Sums are modulo 2^32. */
typedef struct tpu_copy {
    uint32_t value, place;
    uint32_t count[TPU_LOOPS], value_step[TPU_LOOPS], place_step[TPU_LOOPS];
} tpu_copy;

/* A tensor in a region: sample s is stored (s / rows) * chunk + (s % rows) * step elements after the places of its copies. */
typedef struct tpu_tensor {
    uint32_t rows, chunk, step;
    uint32_t copies;
    const tpu_copy *copy;
} tpu_tensor;

/* The operator that the host computes after the last layer, over all values of a sample. */
enum tpu_last { TPU_LAST_NONE = 0, TPU_LAST_SOFTMAX = 1, TPU_LAST_LOG_SOFTMAX = 2, TPU_LAST_ARGMAX = 3 };

/* The requirements of a network on the core: `n` must be equal, and `bus_bytes` equal, or less if both are up to 32. The others
   are minimums. */
typedef struct tpu_needs {
    uint32_t version;
    uint32_t n, bus_bytes, in_flight;
    uint32_t unified_buffer_depth, accumulator_depth, bias_depth, weight_fifo_depth;
    uint32_t features; /* masks of the fields of the register that must not be 0 */
} tpu_needs;

typedef struct tpu_model {
    const char *name;
    uint32_t image_bytes, image_crc; /* region MODEL, the contents of model.bin; execution begins at its first byte */
    uint32_t input_bytes, output_bytes, scratch_bytes;
    uint32_t batch;                       /* samples of a run */
    uint32_t input_values, output_values; /* of a sample */
    uint32_t input_rank, output_rank;
    const uint32_t *input_shape, *output_shape; /* of a sample, as in the network */
    uint32_t output_bits;                       /* 32: binary32 in region OUTPUT; 16: bfloat16 */
    uint32_t last;                              /* enum tpu_last */
    tpu_needs needs;
    uint32_t inputs; /* tensors in region INPUT, which may contain a value of a sample more than once */
    const tpu_tensor *input;
    uint32_t outputs; /* tensors in region OUTPUT */
    const tpu_tensor *output;
    uint32_t header_crc; /* of all fields above */
} tpu_model;

/* --- Before the first run --- */

/* Checks for a core: NO_CORE, VERSION. `port` must outlive `core`. A run in progress continues; tpu_recover ends it. */
enum tpu_error tpu_open(tpu *core, const tpu_port *port);

/* Calls tpu_check_header, and checks that the core fits the network: HEADER, VERSION, CONFIGURATION, DEAD_BUS. */
enum tpu_error tpu_check(tpu *core, const tpu_model *model);

/* Checks the CRC-32 of all fields of model.h: HEADER. */
enum tpu_error tpu_check_header(const tpu_model *model);

/* Checks the CRC-32 of `image`, the model.image_bytes bytes of model.bin: IMAGE. It takes about 20 instructions per byte. */
enum tpu_error tpu_check_image(const tpu_model *model, const void *image);

/* Addresses of the regions on the core's bus. `scratch` is ignored if model.scratch_bytes is 0. */
typedef struct tpu_places {
    uint64_t model, input, output, scratch;
} tpu_places;

/* Writes the registers of all four regions: ADDRESS, BUSY, DEAD_BUS. */
enum tpu_error tpu_place(tpu *core, const tpu_model *model, const tpu_places *places);

/* Writes the registers of one region, such as another INPUT or OUTPUT of the same network: ADDRESS, ARGUMENT (`region` is not a
   TPU_REGION_*), BUSY, DEAD_BUS. It does not check for overlaps. */
enum tpu_error tpu_place_region(tpu *core, uint32_t region, uint64_t address, uint32_t bytes);

/* Sets the number of cycles without progress after which the core ends a run (2^20 after its reset): BUSY, DEAD_BUS. */
enum tpu_error tpu_set_timeout(tpu *core, uint32_t cycles);

/* --- Data --- */

/* Fills region INPUT with zeros. Call it once: tpu_pack does not write elements that are always zero. */
void tpu_clear_input(const tpu_model *model, void *input);

/* Writes the model.input_values values of sample `sample` < batch to region INPUT, rounded to bfloat16 (to nearest, ties to even,
   subnormal numbers to zero): ARGUMENT. Unused samples of a batch may hold any values. */
enum tpu_error tpu_pack(const tpu_model *model, void *input, uint32_t sample, const float *values);

/* Reads the model.output_values results of a sample from region OUTPUT: ARGUMENT. */
enum tpu_error tpu_unpack(const tpu_model *model, const void *output, uint32_t sample, float *values);

/* Returns the index of the largest of `count` values, the first of equal ones. It compares integers; a NaN is not allowed. */
uint32_t tpu_largest(const float *values, uint32_t count);

/* --- Runs --- */

/* Starts a run: BUSY, NOT_RECOVERED, DEAD_BUS. */
enum tpu_error tpu_start(tpu *core);

/* Waits for the end of the run: polls the status at most `polls` + 1 times, with a call of `wait` between two polls: LIMIT,
   DEAD_BUS, and the faults. After a fault it polls as often again until the bus is idle: `quiet`, DEAD_MEMORY. */
enum tpu_error tpu_wait(tpu *core, uint32_t polls);

/* tpu_start, then tpu_wait. */
enum tpu_error tpu_run(tpu *core, uint32_t polls);

/* Ends any run, clears a fault, and polls the status until the bus is idle, at most `polls` + 1 times: DEAD_BUS, DEAD_MEMORY.
   Regions and the timeout keep their values. The results of an ended run are undefined. */
enum tpu_error tpu_recover(tpu *core, uint32_t polls);

/* Makes a ring of `count` cores, after tpu_recover of each core: gives core i rank i, and empties the links: BUSY, DEAD_BUS,
   LINK. The link of each core leads to the next core of `cores`. RINGs need it before the first run, and again after a fault or
   an `aresetn` of any core. It polls each core `looks` times during the flush, and again after it. These polls must take at
   least the latency of a link. */
enum tpu_error tpu_flush_ring(tpu *const *cores, uint32_t count, uint32_t looks);

/* For an interrupt handler: clears `irq`, and disables it until the next start. tpu_wait still finds the end of the run. */
void tpu_interrupt(tpu *core);

/* Counters of the last run: `busy` and all entries of `stall` (by TPU_STALL_*) add up to `cycles`; beats of the bus. */
typedef struct tpu_counters {
    uint32_t cycles, busy, stall[TPU_STALLS], read_beats, write_beats;
} tpu_counters;

void tpu_read_counters(tpu *core, tpu_counters *counters);

/* Returns a message for an error. */
const char *tpu_text(enum tpu_error error);

#ifdef __cplusplus
}
#endif

#endif
