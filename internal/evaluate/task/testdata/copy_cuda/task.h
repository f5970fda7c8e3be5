#pragma once

// What a submission provides: make the n elements at out the same as those at in.
// Both lie on the device and do not overlap.
void custom_kernel(ELEMENT *out, const ELEMENT *in, int n);
