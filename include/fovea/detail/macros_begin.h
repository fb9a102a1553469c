// Macros of others, X11's and Qt's among them, that are names in these headers: undefined from here
// to fovea/detail/macros_end.h, which gives them back. Each header that has such names includes
// both, anew, so that there is no guard; they may be nested.
#pragma push_macro("Status")
#undef Status
#pragma push_macro("slots")
#undef slots
