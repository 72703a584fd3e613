/* The network of cpu_data.h on the CPU, one sample at a time. */

#ifndef CPU_NETWORK_H
#define CPU_NETWORK_H

#include <stdint.h>

#include "cpu_data.h"

/* In binary32, by the compiler's functions; between layers rounded to bfloat16, as the core does. */
void run_binary32(const float *sample, float *results);

/* In integers: weights and values of 8 bits, sums of 32. */
void run_integer(const int8_t *sample, int32_t *results);

#endif
