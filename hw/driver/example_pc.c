/* A program for a PC without the core: runs the batch of samples that `tpu compile` wrote, on the C model of the core, and compares
   every result. README.md says how it is built. Argument: the folder that `tpu compile` wrote. */

#include "example_batch.h"
#include "model.h" /* by `tpu compile` */
#include "tpu_core.h"

#define LIMIT 1000u /* looks at the status */

static unsigned char image[MODEL_IMAGE_BYTES], input[MODEL_INPUT_BYTES], output[MODEL_OUTPUT_BYTES];
static unsigned char scratch[MODEL_SCRATCH_BYTES + 1]; /* may be 0 bytes, which C does not have */
static const example_regions regions = {image, input, output, {0x10000000u, 0x20000000u, 0x30000000u, 0x40000000u}};
static const tpu_core_array arrays[] = {{0x10000000u, sizeof image, image},
                                        {0x20000000u, sizeof input, input},
                                        {0x30000000u, sizeof output, output},
                                        {0x40000000u, sizeof scratch, scratch}};
static const tpu_core_map memory = {arrays, 4};

int main(int count, char **arguments)
{
    const tpu_core_config config = tpu_core_for(&model.needs);
    tpu_core *simulated = tpu_core_new(&config, tpu_core_arrays, (void *)(uintptr_t)&memory);
    const tpu_port port = {simulated, tpu_core_read, tpu_core_write, 0, 0};
    uint32_t wrong;
    tpu core;

    if (!simulated)
        example_fail("tpu_core_new", "no memory");
    wrong = example_batch(&core, &port, &regions, count > 1 ? arguments[1] : ".", LIMIT);
    tpu_core_free(simulated);
    return wrong != 0;
}
