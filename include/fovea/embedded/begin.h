// Opens what the header-only edition declares: hides macros of Windows, X11, Arduino and
// <complex.h> whose names it and xsimd use, and keeps -Wfloat-equal of the including project out.
// end.h closes it. Included once for each, so it has no guard.
#pragma push_macro("min")
#pragma push_macro("max")
#pragma push_macro("abs")
#pragma push_macro("round")
#pragma push_macro("near")
#pragma push_macro("far")
#pragma push_macro("small")
#pragma push_macro("interface")
#pragma push_macro("IN")
#pragma push_macro("OUT")
#pragma push_macro("None")
#pragma push_macro("Bool")
#pragma push_macro("True")
#pragma push_macro("False")
#pragma push_macro("Status")
#pragma push_macro("Success")
#pragma push_macro("Always")
#pragma push_macro("B")
#pragma push_macro("F")
#pragma push_macro("I")
#undef min
#undef max
#undef abs
#undef round
#undef near
#undef far
#undef small
#undef interface
#undef IN
#undef OUT
#undef None
#undef Bool
#undef True
#undef False
#undef Status
#undef Success
#undef Always
#undef B
#undef F
#undef I

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wfloat-equal"
