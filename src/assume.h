/* assume.h: RG_ASSUME(x) says what holds at a place for reasons that stand elsewhere: for the reader, and for clang's
 * analyser, which looks at one file at a time. Builds with AddressSanitizer prove it while they run; in all others it
 * is nothing. It must not be used for what input, memory or the system can make untrue. */
#ifndef RG_ASSUME_H
#define RG_ASSUME_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RG_ASSUME_PROVE 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define RG_ASSUME_PROVE 1
#endif

#if defined(__clang_analyzer__)
#define RG_ASSUME(x) ((x) ? (void)0 : __builtin_unreachable())
#elif defined(RG_ASSUME_PROVE)
#define RG_ASSUME(x) ((x) ? (void)0 : __builtin_trap())
#else
#define RG_ASSUME(x) ((void)0)
#endif

#endif
