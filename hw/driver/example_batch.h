/* The common part of the programs for a PC and for Linux: runs the batch of a folder that `tpu compile` wrote. */

#ifndef EXAMPLE_BATCH_H
#define EXAMPLE_BATCH_H

#include "tpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The four regions as the CPU sees them, and their addresses on the core's bus. */
typedef struct example_regions {
    unsigned char *model, *input, *output;
    tpu_places places;
} example_regions;

/* Prints a message and ends the program. */
void example_fail(const char *step, const char *text);

/* Runs the batch, prints the class of each sample, and compares every result with results.bin. Returns the number of samples that
   differ. `limit` is the number of looks at the status. */
uint32_t example_batch(tpu *core, const tpu_port *port, const example_regions *regions, const char *folder, uint32_t limit);

#ifdef __cplusplus
}
#endif

#endif
