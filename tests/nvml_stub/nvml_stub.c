/* A stand-in for the NVIDIA driver library, libnvidia-ml.so.1, with two 16 GB cards.
 *
 * It has the symbols that nvidia-ml-py looks up for our sampler, and misbehaves as told by variables
 * of the environment, which are read at each call:
 *
 *   NVML_STUB_GPUS=n                 number of cards, at most 2 (default 2)
 *   NVML_STUB_INIT_ERROR=code        nvmlInit answers this NVML error code
 *   NVML_STUB_POWER_UNSUPPORTED=i    card i has no power readings
 *   NVML_STUB_MEMORY_V2_ERROR=code   the second version of the memory call answers this code
 *   NVML_STUB_PCIE_DELAY_MS=ms       each PCIe throughput reading takes this long
 *   NVML_STUB_LOST_GPU=i             card i falls off the bus ...
 *   NVML_STUB_LOST_AFTER=n           ... after n polls
 *   NVML_STUB_BACK_AFTER_INIT=n      ... and is there again after the n-th nvmlInit
 *   NVML_STUB_HANG_AFTER=n           a poll of card 0 never returns after n polls
 *
 * A poll is a call for memory in its first attempt. Compiled with -DNO_MEMORY_V2 the symbol of the
 * second version is missing altogether.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
};

#define CARDS 2
#define MIB (1024ULL * 1024ULL)
#define TOTAL (16311ULL * MIB)
#define RESERVED (430ULL * MIB)
#define MEMORY_V2_VERSION 0x02000028u

typedef struct {
    unsigned int index;
    unsigned int polls;
} card_t;

typedef struct {
    unsigned long long total, free, used;
} memory_v1_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

typedef struct {
    unsigned int gpu, memory;
} utilization_t;

static card_t cards[CARDS] = {{0, 0}, {1, 0}};
static unsigned int initialised = 0;
static unsigned int inits = 0;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? otherwise : atoi(text);
}

static int lost(const card_t *card) {
    if (setting("NVML_STUB_LOST_GPU", -1) != (int)card->index) return 0;
    if ((int)inits >= setting("NVML_STUB_BACK_AFTER_INIT", 1 << 30)) return 0;
    return (int)card->polls > setting("NVML_STUB_LOST_AFTER", 0);
}

static int check(const card_t *card) {
    if (initialised == 0) return UNINITIALIZED;
    if (card == NULL) return INVALID_ARGUMENT;
    return lost(card) ? GPU_IS_LOST : SUCCESS;
}

static int poll(card_t *card) {
    card->polls += 1;
    if (card->index == 0 && (int)card->polls > setting("NVML_STUB_HANG_AFTER", 1 << 30))
        for (;;) pause();
    return check(card);
}

static unsigned long long used(const card_t *card) { return (9000ULL + 500ULL * card->index) * MIB; }

static int give(const card_t *card, unsigned int *out, unsigned int value) {
    int code = check(card);
    if (code == SUCCESS) *out = value;
    return code;
}

int nvmlInitWithFlags(unsigned int flags) {
    int code = setting("NVML_STUB_INIT_ERROR", SUCCESS);
    (void)flags;
    if (code != SUCCESS) return code;
    initialised += 1;
    inits += 1;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (initialised == 0) return UNINITIALIZED;
    initialised -= 1;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error without a name";
}

int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    if (initialised == 0) return UNINITIALIZED;
    snprintf(text, length, "590.44.01");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (initialised == 0) return UNINITIALIZED;
    *count = (unsigned int)setting("NVML_STUB_GPUS", CARDS);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, card_t **handle) {
    if (initialised == 0) return UNINITIALIZED;
    if (index >= CARDS) return INVALID_ARGUMENT;
    *handle = &cards[index];
    return check(&cards[index]);
}

int nvmlDeviceGetName(card_t *card, char *text, unsigned int length) {
    int code = check(card);
    if (code == SUCCESS) snprintf(text, length, "NVIDIA GeForce RTX 5060 Ti");
    return code;
}

int nvmlDeviceGetUUID(card_t *card, char *text, unsigned int length) {
    int code = check(card);
    if (code == SUCCESS)
        snprintf(text, length, "GPU-00000000-0000-0000-0000-00000000000%u", card->index);
    return code;
}

#ifndef NO_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(card_t *card, memory_v2_t *memory) {
    int code = poll(card);
    if (code != SUCCESS) return code;
    code = setting("NVML_STUB_MEMORY_V2_ERROR", SUCCESS);
    if (code != SUCCESS) return code;
    /* Drivers answer this to a caller that passes 2 instead of the version of the struct. */
    if (memory->version != MEMORY_V2_VERSION) return FUNCTION_NOT_FOUND;
    memory->total = TOTAL;
    memory->reserved = RESERVED;
    memory->used = used(card);
    memory->free = TOTAL - RESERVED - memory->used;
    return SUCCESS;
}
#endif

int nvmlDeviceGetMemoryInfo(card_t *card, memory_v1_t *memory) {
#ifdef NO_MEMORY_V2
    int code = poll(card);
#else
    int code = check(card);
#endif
    if (code != SUCCESS) return code;
    memory->total = TOTAL;
    memory->used = used(card) + RESERVED;
    memory->free = TOTAL - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(card_t *card, utilization_t *rates) {
    int code = check(card);
    if (code != SUCCESS) return code;
    rates->gpu = 71 + card->index;
    rates->memory = 40;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(card_t *card, int sensor, unsigned int *celsius) {
    (void)sensor;
    return give(card, celsius, 61 + card->index);
}

static int power(const card_t *card, unsigned int *out, unsigned int milliwatts) {
    int code = check(card);
    if (code != SUCCESS) return code;
    if (setting("NVML_STUB_POWER_UNSUPPORTED", -1) == (int)card->index) return NOT_SUPPORTED;
    *out = milliwatts;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(card_t *card, unsigned int *milliwatts) {
    return power(card, milliwatts, 151500 + 1000 * card->index);
}

int nvmlDeviceGetEnforcedPowerLimit(card_t *card, unsigned int *milliwatts) {
    return power(card, milliwatts, 180000);
}

int nvmlDeviceGetPcieThroughput(card_t *card, int counter, unsigned int *kilobytes_per_s) {
    int delay_ms = setting("NVML_STUB_PCIE_DELAY_MS", 0);
    struct timespec delay = {delay_ms / 1000, (delay_ms % 1000) * 1000000L};
    nanosleep(&delay, NULL);
    /* Counter 0 is sending, 1 receiving, as seen from the card. */
    return give(card, kilobytes_per_s, counter == 0 ? 1200 : 3400);
}

int nvmlDeviceGetCurrPcieLinkGeneration(card_t *card, unsigned int *generation) {
    return give(card, generation, 5);
}

int nvmlDeviceGetCurrPcieLinkWidth(card_t *card, unsigned int *width) {
    return give(card, width, 8);
}

int nvmlDeviceGetClockInfo(card_t *card, int type, unsigned int *mhz) {
    return give(card, mhz, type == 1 ? 2602 : 1);
}
