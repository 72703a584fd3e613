#include "example_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h" /* by `tpu compile` */

void example_fail(const char *step, const char *text)
{
    fprintf(stderr, "%s: %s\n", step, text);
    exit(1);
}

static void check(const char *step, enum tpu_error error)
{
    if (error)
        example_fail(step, tpu_text(error));
}

static void read_file(const char *folder, const char *name, unsigned char *bytes, size_t count)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "rb");
    if (!file || fread(bytes, 1, count, file) != count)
        example_fail(path, "cannot read it; give the folder that `tpu compile` wrote");
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

uint32_t example_batch(tpu *core, const tpu_port *port, const example_regions *regions, const char *folder, uint32_t limit)
{
    static float samples[MODEL_BATCH * MODEL_INPUT_VALUES], wanted[MODEL_BATCH * MODEL_OUTPUT_VALUES];
    float results[MODEL_OUTPUT_VALUES];
    uint32_t sample, wrong = 0;

    read_file(folder, "model.bin", regions->model, MODEL_IMAGE_BYTES);
    read_numbers(folder, "samples.bin", samples, MODEL_BATCH * MODEL_INPUT_VALUES);
    read_numbers(folder, "results.bin", wanted, MODEL_BATCH * MODEL_OUTPUT_VALUES);
    check("tpu_open", tpu_open(core, port));
    check("tpu_recover", tpu_recover(core, limit));
    check("tpu_check", tpu_check(core, &model));
    check("tpu_check_image", tpu_check_image(&model, regions->model));
    check("tpu_place", tpu_place(core, &model, &regions->places));
    tpu_clear_input(&model, regions->input);
    for (sample = 0; sample < MODEL_BATCH; sample++)
        check("tpu_pack", tpu_pack(&model, regions->input, sample, samples + sample * MODEL_INPUT_VALUES));
    check("tpu_run", tpu_run(core, limit));
    for (sample = 0; sample < MODEL_BATCH; sample++) {
        check("tpu_unpack", tpu_unpack(&model, regions->output, sample, results));
        wrong += memcmp(results, wanted + sample * MODEL_OUTPUT_VALUES, sizeof results) != 0;
        printf("sample %u: %u\n", (unsigned)sample, (unsigned)tpu_largest(results, MODEL_OUTPUT_VALUES));
    }
    printf("%u of %u samples differ from the golden model\n", (unsigned)wrong, (unsigned)MODEL_BATCH);
    return wrong;
}
