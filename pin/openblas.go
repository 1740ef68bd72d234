//go:build openblas

package pin

import _ "gonum.org/v1/netlib/blas/netlib"
