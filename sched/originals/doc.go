// Package originals decides as the programs of published schedulers do, with what they have otherwise than they
// describe. Each job starts and ends when it does there, where their results are at hand:
//
//   - elasticflow: edf, edf-admission, ef, ef-admission, tiresias, gandiva, themis, chronus
//   - muri: muri-s, muri-l, srtf, srsf, tiresias
//   - lucid: fifo, sjf, srtf, srsf, qssf, tiresias, lucid
//   - allox: allox, alloxplus, sjf, srpt, es, drf, drfext, drffifo
//
// Package star/sched has the policies that they describe.
//
// It is a module of its own because nothing in STAR needs it: it serves comparisons of schedulers.
// sched/originals/README.md says what the programs have otherwise, and what that does to their results.
//
// Floating-point numbers are never fused: products are converted to float64 before they are added to something, so that
// the results are the same on every processor.
//
// Sources: ElasticFlow (Gu et al., ASPLOS 2023), Muri (Zhao et al., SIGCOMM 2022), Lucid (Hu et al., ASPLOS 2023), AlloX
// (Le et al., EuroSys 2020), and their programs.
package originals
