// What headers of others define before Fovea's are included. Where these macros are, the standard
// headers that Fovea's include have been read before.
#ifdef __cplusplus
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#else
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

// X11
#define Above 0
#define All 0
#define Always 2
#define Below 1
#define Bool int
#define Complex 0
#define Convex 2
#define CurrentTime 0L
#define CursorShape 0
#define DirectColor 5
#define Expose 12
#define False 0
#define GrayScale 1
#define KeyPress 2
#define Nonconvex 1
#define None 0L
#define Opposite 4
#define PseudoColor 3
#define StaticGray 0
#define Status int
#define Success 0
#define True 1
#define TrueColor 4
#define Unsorted 0

// Windows
#define CALLBACK
#define CONST const
#define DELETE 0x00010000L
#define DOMAIN 1
#define ERROR 0
#define FALSE 0
#define IN
#define NO_ERROR 0L
#define OPTIONAL
#define OUT
#define OVERFLOW 3
#define STRICT 1
#define TRUE 1
#define UNDERFLOW 4
#define VOID void
#define Yield()
#define cdecl
#define far
#define huge
#define hyper long
#define interface struct
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define near
#define pascal
#define small char

// C's complex.h, BSD, Qt, Arduino, tests and checks of others
#define F(text) text
#define I 1i
#define abs(x) ((x) > 0 ? (x) : -(x))
#define assume(x)
#define check(x)
#define emit
#define forever for (;;)
#define major(x) (x)
#define minor(x) (x)
#define require(x)
#define round(x) (x)
#define signals public
#define slots
#define unix 1
#define verify(x)
