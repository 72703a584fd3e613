/* A program for Linux: runs the batch of samples that `tpu compile` wrote on a core behind UIO, and compares every result.
   Arguments: the folder that `tpu compile` wrote, the UIO device, and its folder in sysfs; for example
   run net /dev/uio0 /sys/class/uio/uio0/maps.

   With -DTPU_SIMULATED and core/, the C model of the core replaces the registers. The memory is still mapped. */

#include <stdio.h>

#include "example_batch.h"
#include "model.h" /* by `tpu compile` */
#include "tpu_linux.h"

#define LIMIT 6000u /* status polls, at most 100 ms apart */

static tpu_linux own;

/* Takes the memory of a region. Returns its address on the bus. */
static uint64_t region(size_t bytes, unsigned char **place)
{
    const size_t offset = tpu_linux_take(&own, bytes);

    if (bytes && offset == own.bytes)
        example_fail("tpu_linux_take", "the reserved memory is too small for this network");
    *place = own.memory + offset;
    return own.address + offset;
}

#ifdef TPU_SIMULATED
#include "tpu_core.h"

static void *memory(void *context, uint64_t address, uint64_t bytes, int writes)
{
    (void)context;
    (void)writes;
    return address >= own.address && address + bytes <= own.address + own.bytes ? own.memory + (address - own.address) : 0;
}

static void replace_registers(void)
{
    const tpu_core_config config = tpu_core_for(&model.needs);

    own.port.context = tpu_core_new(&config, memory, 0);
    if (!own.port.context)
        example_fail("tpu_core_new", "no memory");
    own.port.read = tpu_core_read;
    own.port.write = tpu_core_write;
    own.port.wait = tpu_core_wait;
}
#endif

int main(int count, char **arguments)
{
    example_regions regions;
    unsigned char *scratch;
    const char *problem;
    uint32_t wrong;
    tpu core;

    if (count != 4)
        example_fail(arguments[0], "give the folder of `tpu compile`, the UIO device, and its maps in sysfs");
    problem = tpu_linux_open(&own, arguments[2], arguments[3]);
    if (problem)
        example_fail(arguments[2], problem);
#ifdef TPU_SIMULATED
    replace_registers();
#endif
    regions.places.model = region(MODEL_IMAGE_BYTES, &regions.model);
    regions.places.input = region(MODEL_INPUT_BYTES, &regions.input);
    regions.places.output = region(MODEL_OUTPUT_BYTES, &regions.output);
    regions.places.scratch = region(MODEL_SCRATCH_BYTES, &scratch);
    wrong = example_batch(&core, &own.port, &regions, arguments[1], LIMIT);
    tpu_linux_close(&own);
    return wrong != 0;
}
