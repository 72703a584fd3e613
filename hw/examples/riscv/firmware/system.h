/* The system that this firmware runs on: `../system.sv`. */

#ifndef SYSTEM_H
#define SYSTEM_H

#include <stdint.h>

#include "tpu.h"

#define TPU_BASE 0x80000000u
#define NOWHERE 0xA0000000u            /* without a response */
#define BEYOND_RAM 0x50000000u         /* with an error response of the memory controller */
#define LOCAL __attribute__((section(".local"))) /* in the CPU's local memory, which the core cannot access */
#define HOT __attribute__((section(".hot")))     /* together in the CPU's cache, with the compiler's arithmetic */
#define REGION __attribute__((aligned(128)))     /* of the core: aligned to a bus beat, and to a line of the CPU's cache */

/* The serial line. Numbers of `width` or more characters. */
void put_text(const char *text);
void put_number(uint32_t value, uint32_t width);
void put_words(const void *values, uint32_t count); /* of 32 bits, with eight digits and a space before each */

uint32_t cycles(void);
uint32_t bus_bytes(void); /* bytes that the CPU has moved from and to RAM */
void detach(uint32_t yes); /* 1: accesses to the core's registers get no response */
void end(uint32_t status) __attribute__((noreturn));

/* Hooks of the driver: the first waits for `irq`, or for some cycles. The second invalidates the CPU's data cache, which is
   write-through. */
void wait_for_core(void *context);
void empty_cache(void *context);

#endif
