#pragma once
// FEWBIT_HOT: a loop worth compiling for several instruction sets; the loader picks the one the machine has.
// Off under the sanitizers (their runtime is not up when the loader asks) and where the compiler or the
// machine is another one.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__CUDACC__)
#define FEWBIT_HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FEWBIT_HOT
#endif

// A helper of hot loops: must be inlined, or each clone would call the one compiled for the oldest machine.
#ifdef __GNUC__
#define FEWBIT_HOT_INLINE __attribute__((always_inline)) inline
#else
#define FEWBIT_HOT_INLINE inline
#endif
