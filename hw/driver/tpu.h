/* Driver for the core: freestanding C99 (also C++), no allocation, no library, no floating-point arithmetic.

   tpu.c has runs, tpu_data.c a network's data. What a network needs, `tpu compile` writes: model.h, the header of one network, and
   model.bin, its region MODEL. README.md has an example and what each error means. Nothing here waits without a limit. */

#ifndef TPU_H
#define TPU_H

#include <stdint.h>

#include "tpu_regs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns: 0, or why it did not do what it was to. */
enum tpu_error {
    TPU_OK = 0,
    TPU_ERROR_NO_CORE = 1,       /* the register `id` has another value than this core's */
    TPU_ERROR_VERSION = 2,       /* the core's version is not one that this driver, or the network, was made for */
    TPU_ERROR_CONFIGURATION = 3, /* the core's sizes or features are not those that the network was compiled for */
    TPU_ERROR_HEADER = 4,        /* model.h is not as `tpu compile` wrote it */
    TPU_ERROR_IMAGE = 5,         /* the image is not the model.bin of this model.h */
    TPU_ERROR_ADDRESS = 6,       /* a region that is not on a boundary of the bus beat, ends beyond 2^64, or overlaps another */
    TPU_ERROR_ARGUMENT = 7,      /* there is no such region, or no such sample in a batch */
    TPU_ERROR_BUSY = 8,          /* a run is in progress */
    TPU_ERROR_NOT_RECOVERED = 9, /* the last run ended with a fault: tpu_recover comes first */
    TPU_ERROR_LIMIT = 10,        /* the limit passed during the run: wait again, or tpu_recover */
    TPU_ERROR_DEAD_BUS = 11,     /* registers do not respond, or never change: the core has no clock, or its bus is broken */
    TPU_ERROR_DEAD_MEMORY = 12,  /* the memory does not respond to the core: reset both */
    TPU_ERROR_LINK = 13,         /* a link between cores is not empty after a flush */

    /* The core ended the run with a fault: 32 + its cause. tpu.pc is the instruction. */
    TPU_ERROR_FAULT = 32, /* a cause that this driver does not know; tpu.cause has it */
    TPU_ERROR_ILLEGAL = 32 + TPU_FAULT_ILLEGAL,
    TPU_ERROR_RANGE = 32 + TPU_FAULT_ADDRESS,
    TPU_ERROR_LENGTH = 32 + TPU_FAULT_LENGTH,
    TPU_ERROR_BUS_READ = 32 + TPU_FAULT_BUS_READ,
    TPU_ERROR_BUS_WRITE = 32 + TPU_FAULT_BUS_WRITE,
    TPU_ERROR_TIMEOUT = 32 + TPU_FAULT_TIMEOUT,
    TPU_ERROR_RING = 32 + TPU_FAULT_RING
};

/* How the core is reached. Where a function is 0, `read` and `write` access the registers through a volatile pointer at
   `context`, which has to be mapped as a device (not cached, in order); `wait` and `fence` do nothing. */
typedef struct tpu_port {
    void *context; /* given to each function */
    uint32_t (*read)(void *context, uint32_t offset);
    void (*write)(void *context, uint32_t offset, uint32_t value); /* returns when the core has taken it */
    /* Called between two looks at the status while a run goes on: returns when `irq` has risen, or after a while that is the
       system's to choose. With it the core's interrupt is enabled, without it the status is polled. */
    void (*wait)(void *context);
    /* Called before a run starts and after it has ended: makes memory the same for CPU and core (fence, caches). */
    void (*fence)(void *context);
} tpu_port;

/* One core. The driver writes all of it; `register_offset` and on say more about an error. */
typedef struct tpu {
    const tpu_port *port;
    uint32_t version;
    uint32_t bus_bytes;       /* of one beat: regions begin on multiples of it */
    uint32_t register_offset; /* after TPU_ERROR_NO_CORE, _VERSION, _CONFIGURATION: the register at fault, */
    uint32_t needed, found;   /* what it, or its field, should have been (or at least been), and was */
    uint32_t cause, pc;       /* of the last fault: TPU_FAULT_*, and the offset of the instruction in region MODEL */
    uint32_t quiet;           /* whether the bus has come to rest since: if not, the run's stores may still land */
} tpu;

/* --- A compiled network: the structures in model.h --- */

#define TPU_MODEL_FORMAT 2
#define TPU_LOOPS 4

/* Values of a sample and where they lie: for all l[i] < count[i], value `value + sum of l[i] value_step[i]` of the sample is
   element `place + sum of l[i] place_step[i]` of the region. Sums are modulo 2^32. */
typedef struct tpu_copy {
    uint32_t value, place;
    uint32_t count[TPU_LOOPS], value_step[TPU_LOOPS], place_step[TPU_LOOPS];
} tpu_copy;

/* A tensor in a region: sample s lies (s / rows) * chunk + (s % rows) * step elements behind where its copies say. */
typedef struct tpu_tensor {
    uint32_t rows, chunk, step;
    uint32_t copies;
    const tpu_copy *copy;
} tpu_tensor;

/* What is left to the host after the last layer, over all values of a sample. */
enum tpu_last { TPU_LAST_NONE = 0, TPU_LAST_SOFTMAX = 1, TPU_LAST_LOG_SOFTMAX = 2, TPU_LAST_ARGMAX = 3 };

/* The core that a network runs on: `n` is equal, `bus_bytes` equal, or less where both are up to 32; the others at least. */
typedef struct tpu_needs {
    uint32_t version;
    uint32_t n, bus_bytes, in_flight;
    uint32_t unified_buffer_depth, accumulator_depth, bias_depth, weight_fifo_depth;
    uint32_t features; /* fields of the register that must not be 0, as their masks */
} tpu_needs;

typedef struct tpu_model {
    const char *name;
    uint32_t image_bytes, image_crc; /* region MODEL, which is model.bin: execution begins at its first byte */
    uint32_t input_bytes, output_bytes, scratch_bytes;
    uint32_t batch;                       /* samples of a run */
    uint32_t input_values, output_values; /* of a sample */
    uint32_t input_rank, output_rank;
    const uint32_t *input_shape, *output_shape; /* of a sample, as the network had it */
    uint32_t output_bits;                       /* 32: binary32 in region OUTPUT; 16: bfloat16 */
    uint32_t last;                              /* enum tpu_last */
    tpu_needs needs;
    uint32_t inputs; /* tensors in region INPUT: what the layers read of a sample, some of it more than once */
    const tpu_tensor *input;
    uint32_t outputs; /* tensors in region OUTPUT */
    const tpu_tensor *output;
    uint32_t header_crc; /* of all of the above */
} tpu_model;

/* --- Before the first run --- */

/* Looks for a core: NO_CORE, VERSION. `port` has to last as long as `core`. Whatever ran before goes on: tpu_recover ends it. */
enum tpu_error tpu_open(tpu *core, const tpu_port *port);

/* tpu_check_header, then whether the core is as the network needs it: HEADER, VERSION, CONFIGURATION, DEAD_BUS. */
enum tpu_error tpu_check(tpu *core, const tpu_model *model);

/* Whether model.h is as it was written, by a CRC-32 of all that it says: HEADER. */
enum tpu_error tpu_check_header(const tpu_model *model);

/* Whether `image`, model->image_bytes long, is the model.bin of this model.h, by its CRC-32: IMAGE. About 20 instructions a byte. */
enum tpu_error tpu_check_image(const tpu_model *model, const void *image);

/* Where the regions are, as addresses of the core's bus. `scratch` is of no account where model->scratch_bytes is 0. */
typedef struct tpu_places {
    uint64_t model, input, output, scratch;
} tpu_places;

/* Places all four regions: ADDRESS, BUSY, DEAD_BUS. */
enum tpu_error tpu_place(tpu *core, const tpu_model *model, const tpu_places *places);

/* Places one region, as for another INPUT or OUTPUT of the same network; overlaps are the caller's to avoid: ADDRESS, ARGUMENT
   (`region` is not a TPU_REGION_*), BUSY, DEAD_BUS. */
enum tpu_error tpu_place_region(tpu *core, uint32_t region, uint64_t address, uint32_t bytes);

/* Cycles without any progress after which the core itself ends a run (2^20 after its reset): BUSY, DEAD_BUS. */
enum tpu_error tpu_set_timeout(tpu *core, uint32_t cycles);

/* --- Data --- */

/* Fills region INPUT, as the CPU sees it, with zeros: once, since tpu_pack leaves what is always zero as it is. */
void tpu_clear_input(const tpu_model *model, void *input);

/* Puts sample `sample` < batch, model->input_values long, into region INPUT, rounded to bfloat16 (to nearest, ties to even,
   subnormal numbers to zero): ARGUMENT. Samples that a batch lacks may stay what they are. */
enum tpu_error tpu_pack(const tpu_model *model, void *input, uint32_t sample, const float *values);

/* Takes the results of a sample, model->output_values long, out of region OUTPUT: ARGUMENT. */
enum tpu_error tpu_unpack(const tpu_model *model, const void *output, uint32_t sample, float *values);

/* Number of the largest of `count` values, the first of equal ones; compares as integers, and expects no NaN. */
uint32_t tpu_largest(const float *values, uint32_t count);

/* --- Runs --- */

/* Starts a run: BUSY, NOT_RECOVERED, DEAD_BUS. */
enum tpu_error tpu_start(tpu *core);

/* Waits until the run has ended, for `polls` calls of `wait`, or looks at the status, at most: LIMIT, DEAD_BUS, and the faults.
   After a fault it looks as often again until the bus is at rest: `quiet`, DEAD_MEMORY. */
enum tpu_error tpu_wait(tpu *core, uint32_t polls);

/* tpu_start, then tpu_wait. */
enum tpu_error tpu_run(tpu *core, uint32_t polls);

/* Ends any run, clears a fault, and waits until the bus is at rest, for `polls` looks at the status at most: DEAD_BUS,
   DEAD_MEMORY. Regions and the timeout stay; the results of a run that it ended are undefined. */
enum tpu_error tpu_recover(tpu *core, uint32_t polls);

/* Empties the links of the `count` cores of a ring, after tpu_recover of each: BUSY, DEAD_BUS, LINK. RINGs need it before the
   first run, and again after a fault or an `aresetn` of any core. It looks `looks` times at each core during the flush, and again after it: these looks must take at least a link's latency. */
enum tpu_error tpu_flush_ring(tpu *const *cores, uint32_t count, uint32_t looks);

/* For an interrupt handler: takes `irq` back, and off until the next start. The end of the run remains to be seen by tpu_wait. */
void tpu_interrupt(tpu *core);

/* Of the last run: `busy` and all of `stall` (by TPU_STALL_*) add up to `cycles`; beats of the bus. */
typedef struct tpu_counters {
    uint32_t cycles, busy, stall[TPU_STALLS], read_beats, write_beats;
} tpu_counters;

void tpu_read_counters(tpu *core, tpu_counters *counters);

/* A line for people that says what an error is. */
const char *tpu_text(enum tpu_error error);

#ifdef __cplusplus
}
#endif

#endif
