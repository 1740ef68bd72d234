// Package blossom finds maximum-weight matchings in general graphs: a set of
// edges without a common vertex that has the largest total weight. It
// knows nothing of what vertices and weights stand for.
//
// The method is the primal-dual one of Edmonds. A matching M is kept beside a
// dual solution: a price u(v) ≥ 0 of every vertex and z(B) ≥ 0 of every blossom
// (an odd set of vertices) such that no edge is worth more than it costs,
//
//	slack(i,j) = u(i) + u(j) + Σ_{B ∋ i,j} z(B) − 2·w(i,j) ≥ 0,
//
// edges of M have no slack, and blossoms with z > 0 are full: they contain
// (|B|−1)/2 edges of M. If, last, every vertex without a mate has u = 0, then no
// matching weighs more than M. Only that last condition is violated at first,
// and every search mends it for one vertex: it grows a tree of alternating paths
// from there, by shortest distance, as Dijkstra's algorithm does, until it reaches
// a vertex without a mate or with u = 0, and turns M over along the path to it.
// Odd cycles of the tree are shrunk to blossoms; blossoms with a z that has
// become 0 are expanded.
//
// A search takes O(m log n), and the size of each blossom that it expands, so that
// all of them take O(n·(m log n + n²)), a logarithm above n³ on complete
// graphs; searches see little of the graph where the first, greedy prices are good. Labels
// belong to whole blossoms, and vertices change blossoms in the smaller part, so that large
// blossoms cost no more than small ones. Memory is O(n + m).
//
// All arithmetic is in 64-bit integers, so that whether an edge is tight is
// never a matter of rounding: comparing floats there is what makes
// implementations loop for ever. Weights are multiplied by a power of two first
// and rounded; [Matching.Gap] says what that can have cost. Integers are exact to 2^52 and
// beyond, see [Match].
//
// [Assign] is for graphs of two sides given as a table of costs, where every row needs a column.
//
// Everything here is pure: the same graph gives the same matching, and nothing
// is shared between calls.
//
// References:
//   - J. Edmonds: Maximum Matching and a Polyhedron with 0,1-Vertices. J. Res. NBS 69B, 1965.
//   - Z. Galil: Efficient Algorithms for Finding Maximum Matching in Graphs. ACM Computing Surveys 18(1), 1986, section
//     5.
//   - W. Cook, A. Rohe: Computing Minimum-Weight Perfect Matchings. INFORMS J. Computing 11(2), 1999 (one tree at a
//     time).
//   - W. T. Tutte: A Short Proof of the Factor Theorem for Finite Graphs. Canad. J. Math. 6, 1954 (the gadget of
//     BMatch).
package blossom
