/* The system of the firmware as a PC: `../firmware/system.h` with standard output, and the C model of the core at TPU_BASE.

   The firmware's calls of tpu_open are compiled as calls of open_on_pc, which replaces the core's registers by the C model. */

#define _DEFAULT_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../firmware/system.h"
#include "model.h"
#include "tpu_core.h"

#define NO_ANSWER 0xFFFFFFFFu /* a read without an answer, as on the system's bus */

extern unsigned char model_image[MODEL_IMAGE_BYTES];
enum tpu_error open_on_pc(tpu *core, const tpu_port *port);

static tpu_core *simulated;
static uint32_t is_detached;

void put_text(const char *text)
{
    fputs(text, stdout);
}

void put_number(uint32_t value, uint32_t width)
{
    printf("%*u", (int)width, (unsigned)value);
}

void put_words(const void *values, uint32_t count)
{
    const uint32_t *words = (const uint32_t *)values;

    while (count--)
        printf(" %08x", (unsigned)*words++);
}

uint32_t cycles(void)
{
    return (uint32_t)clock();
}

uint32_t bus_bytes(void)
{
    return 0;
}

void detach(uint32_t yes)
{
    is_detached = yes;
}

void end(uint32_t status)
{
    exit((int)status);
}

void wait_for_core(void *context)
{
    tpu_core_wait(context);
}

void empty_cache(void *context)
{
    (void)context;
}

static uint32_t read_core(void *context, uint32_t offset)
{
    return is_detached ? NO_ANSWER : tpu_core_read(context, offset);
}

static void write_core(void *context, uint32_t offset, uint32_t value)
{
    if (!is_detached)
        tpu_core_write(context, offset, value);
}

static uint32_t read_nowhere(void *context, uint32_t offset)
{
    (void)context;
    (void)offset;
    return NO_ANSWER;
}

/* The core's bus addresses the memory of this process. */
static void *memory(void *context, uint64_t address, uint64_t bytes, int writes)
{
    (void)context;
    (void)bytes;
    (void)writes;
    return address == BEYOND_RAM ? 0 : (void *)(uintptr_t)address;
}

enum tpu_error open_on_pc(tpu *core, const tpu_port *port)
{
    static tpu_port own, nowhere;
    const tpu_core_config config = tpu_core_for(&model.needs);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)model_image / page * page;

    if (port->context == (void *)(uintptr_t)NOWHERE) {
        nowhere.read = read_nowhere;
        return tpu_open(core, &nowhere);
    }
    if (port->context != (void *)(uintptr_t)TPU_BASE)
        return tpu_open(core, port);
    if (!simulated)
        simulated = tpu_core_new(&config, memory, 0);
    /* The image is in RAM on the firmware's system, and the firmware damages it. */
    if (!simulated || mprotect((void *)first, (uintptr_t)model_image + MODEL_IMAGE_BYTES - first, PROT_READ | PROT_WRITE))
        return TPU_ERROR_NO_CORE;
    own = *port;
    own.context = simulated;
    own.read = read_core;
    own.write = write_core;
    return tpu_open(core, &own);
}
