"""Statistics of texts from which the published quality rules decide, and the line rules of C4, as kernels."""
