/* The C model of the core, behind the port of the driver: the same programs and bits, without timing.

   Compile all files of this folder and link them with the driver. README.md of the driver has an example. */

#ifndef TPU_CORE_H
#define TPU_CORE_H

#include <stdint.h>

#include "tpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One core. `config` and `features` are the values of these registers; hw/config.py defines the other sizes. */
typedef struct tpu_core_config {
    uint32_t config, features;
    uint32_t unified_buffer_depth, accumulator_depth, bias_depth, weight_fifo_depth, update_depth, ring_depth;
    uint32_t address_width;
} tpu_core_config;

/* Returns the smallest core that runs a compiled network: `&model.needs` of model.h. */
tpu_core_config tpu_core_for(const tpu_needs *needs);

/* Host memory: returns a pointer to the `bytes` bytes at a bus address, or 0 for an error response of the bus. The pointer must
   stay valid until the run has ended. `writes` is 1 if the core writes them. */
typedef void *tpu_core_memory(void *context, uint64_t address, uint64_t bytes, int writes);

/* Host memory that consists of arrays: tpu_core_arrays is a tpu_core_memory with a `tpu_core_map` as context. */
typedef struct tpu_core_array {
    uint64_t address, bytes;
    void *place;
} tpu_core_array;

typedef struct tpu_core_map {
    const tpu_core_array *array;
    uint32_t arrays;
} tpu_core_map;

void *tpu_core_arrays(void *map, uint64_t address, uint64_t bytes, int writes);

/* Returns a core after power-up with all memories 0. Returns 0 if there is not enough memory, or no core has such a `config`.
   `context` is passed to `memory`. */
typedef struct tpu_core tpu_core;
tpu_core *tpu_core_new(const tpu_core_config *config, tpu_core_memory *memory, void *context);
void tpu_core_free(tpu_core *core);

/* Connects cores to a ring: the link of each leads to the next one, and the link of the last one to the first. Each core also
   needs its register `ring`. */
void tpu_core_join(tpu_core *const *cores, uint32_t count);

/* The functions of a tpu_port with a tpu_core as context. A run is executed when it starts. The status shows it as running for
   two polls, and then until the other cores of a ring have executed the same RINGs. */
uint32_t tpu_core_read(void *core, uint32_t offset);
void tpu_core_write(void *core, uint32_t offset, uint32_t value);

/* For tpu_port.wait: lets time pass until the run has ended. A core that waits for a RING of other cores gives TIMEOUT. */
void tpu_core_wait(void *core);

/* Returns 1 while the output `irq` is high. */
int tpu_core_irq(const tpu_core *core);

/* For tests: the number of instructions of the last run, and the contents of a memory, n lanes a row. */
enum tpu_core_space { TPU_CORE_BUFFER, TPU_CORE_SUMS, TPU_CORE_BIASES, TPU_CORE_TABLE, TPU_CORE_UPDATES };
uint32_t tpu_core_executed(const tpu_core *core);
void *tpu_core_bits(tpu_core *core, enum tpu_core_space space);

#ifdef __cplusplus
}
#endif

#endif
