// Gives back what fovea/detail/macros_begin.h took away.
#pragma pop_macro("slots")
#pragma pop_macro("Status")
