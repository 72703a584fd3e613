/* The port of the driver on Linux, without a kernel module: UIO maps the registers and a reserved memory into a program.

   In the device tree, the core is "generic-uio" with two entries of `reg`: registers, then the reserved memory. A kernel with the
   argument uio_pdrv_genirq.of_id=generic-uio then makes /dev/uioN. `tpu package` writes the node. */

#ifndef TPU_LINUX_H
#define TPU_LINUX_H

#include <stddef.h>

#include "tpu.h"

typedef struct tpu_linux {
    tpu_port port;         /* for tpu_open; `wait` sleeps until the interrupt, or for 100 ms */
    unsigned char *memory; /* the reserved memory as the CPU sees it, not cached */
    uint64_t address;      /* address of `memory` on the core's bus */
    size_t bytes;
    void *registers; /* private, like the fields after it */
    size_t register_bytes;
    int file;
    size_t used;
} tpu_linux; /* must stay where it is while it is open */

/* Opens a UIO device, such as "/dev/uio0". `maps` is its folder of sizes and addresses, "/sys/class/uio/uio0/maps". Returns 0, or
   an error message; errno has the cause. After an error nothing is open. */
const char *tpu_linux_open(tpu_linux *linux_port, const char *device, const char *maps);

/* Takes `bytes` of the reserved memory for a region, aligned to 4096 bytes. Returns the offset in `memory`, or the member `bytes`
   if there is no room. 0 bytes always fit. */
size_t tpu_linux_take(tpu_linux *linux_port, size_t bytes);

/* Unmaps and closes the device. Call tpu_recover first: the core must be idle. */
void tpu_linux_close(tpu_linux *linux_port);

#endif
