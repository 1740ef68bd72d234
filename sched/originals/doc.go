// Package originals follows the programs of published schedulers, including where they differ from their papers. Each
// job starts and ends as in the program, where its results are published:
//
//   - elasticflow: edf, edf-admission, ef, ef-admission, tiresias, gandiva, themis, chronus
//   - muri: muri-s, muri-l, srtf, srsf, tiresias
//   - lucid: fifo, sjf, srtf, srsf, qssf, tiresias, lucid
//   - allox: allox, alloxplus, sjf, srpt, es, drf, drfext, drffifo
//
// Package star/sched has the policies of the papers.
//
// It is a separate module because STAR does not need it: it serves comparisons of schedulers.
// sched/originals/README.md lists how the programs differ from their papers, and the effect on their results.
//
// Floating-point numbers are never fused: products are converted to float64 before they are added to something, so that
// the results are the same on every processor.
//
// Sources: ElasticFlow (Gu et al., ASPLOS 2023), Muri (Zhao et al., SIGCOMM 2022), Lucid (Hu et al., ASPLOS 2023),
// AlloX (Le et al., EuroSys 2020), and their programs.
package originals
