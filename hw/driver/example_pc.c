/* A program for a PC without the core: runs the batch of samples that `tpu compile` wrote, on the C model of the core. It
   compares every result with results.bin. README.md says how it is built. Argument: the folder that `tpu compile` wrote. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h" /* by `tpu compile` */
#include "tpu.h"
#include "tpu_core.h"

#define LIMIT 1000u /* looks at the status */

/* The regions, and their addresses on the core's bus. */
static unsigned char image[MODEL_IMAGE_BYTES], input[MODEL_INPUT_BYTES], output[MODEL_OUTPUT_BYTES];
static unsigned char scratch[MODEL_SCRATCH_BYTES + 1]; /* may be 0 bytes, which C does not have */
static const tpu_places places = {0x10000000u, 0x20000000u, 0x30000000u, 0x40000000u};
static const tpu_core_array arrays[] = {{0x10000000u, sizeof image, image},
                                        {0x20000000u, sizeof input, input},
                                        {0x30000000u, sizeof output, output},
                                        {0x40000000u, sizeof scratch, scratch}};
static const tpu_core_map memory = {arrays, 4};

static float samples[MODEL_BATCH * MODEL_INPUT_VALUES], wanted[MODEL_BATCH * MODEL_OUTPUT_VALUES];

static void read_file(const char *folder, const char *name, unsigned char *bytes, size_t count)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "rb");
    if (!file || fread(bytes, 1, count, file) != count) {
        fprintf(stderr, "cannot read %s; give the folder that `tpu compile` wrote\n", path);
        exit(1);
    }
    fclose(file);
}

/* Reads numbers, which are little endian in the file. */
static void read_numbers(const char *folder, const char *name, float *numbers, size_t count)
{
    unsigned char *bytes = (unsigned char *)numbers, *at;
    uint32_t word;

    read_file(folder, name, bytes, 4 * count);
    for (at = bytes; at < bytes + 4 * count; at += 4) {
        word = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        memcpy(at, &word, sizeof word);
    }
}

static void check(const char *step, enum tpu_error error)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", step, tpu_text(error));
        exit((int)error);
    }
}

int main(int count, char **arguments)
{
    const tpu_core_config config = tpu_core_for(&model.needs);
    tpu_core *simulated = tpu_core_new(&config, tpu_core_arrays, (void *)(uintptr_t)&memory);
    const tpu_port port = {simulated, tpu_core_read, tpu_core_write, 0, 0};
    const char *folder = count > 1 ? arguments[1] : ".";
    float results[MODEL_OUTPUT_VALUES];
    uint32_t sample, wrong = 0;
    tpu core;

    if (!simulated)
        check("tpu_core_new", TPU_ERROR_NO_CORE);
    read_file(folder, "model.bin", image, sizeof image);
    read_numbers(folder, "samples.bin", samples, MODEL_BATCH * MODEL_INPUT_VALUES);
    read_numbers(folder, "results.bin", wanted, MODEL_BATCH * MODEL_OUTPUT_VALUES);
    check("tpu_open", tpu_open(&core, &port));
    check("tpu_recover", tpu_recover(&core, LIMIT));
    check("tpu_check", tpu_check(&core, &model));
    check("tpu_check_image", tpu_check_image(&model, image));
    check("tpu_place", tpu_place(&core, &model, &places));
    tpu_clear_input(&model, input);
    for (sample = 0; sample < MODEL_BATCH; sample++)
        check("tpu_pack", tpu_pack(&model, input, sample, samples + sample * MODEL_INPUT_VALUES));
    check("tpu_run", tpu_run(&core, LIMIT));
    for (sample = 0; sample < MODEL_BATCH; sample++) {
        check("tpu_unpack", tpu_unpack(&model, output, sample, results));
        wrong += memcmp(results, wanted + sample * MODEL_OUTPUT_VALUES, sizeof results) != 0;
    }
    printf("%u of %u samples differ from the golden model\n", (unsigned)wrong, (unsigned)MODEL_BATCH);
    tpu_core_free(simulated);
    return wrong != 0;
}
