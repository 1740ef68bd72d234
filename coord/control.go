package coord

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"star/coord/engine"
	"star/coord/traffic"
	"star/modes"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// What people ask a job, or tell it, while it runs: star ctl, star doctor, the page of the job. Questions
// are answered on the goroutine of their connection as far as possible; commands go through the event
// loop, one after the other with everything else, and are answered when they are done.

// probe is what every Pong takes its bytes from; its length is the most that a Ping
// may want. It is never written to.
var probe [8 << 20]byte

// serveTool answers star ctl and star doctor on a connection of their own. It runs on the
// connection's goroutine; only commands reach Run. It ends with the connection, after five minutes
// without a word, or with the first frame that no tool sends. A tool is told the program's version
// and host at once, for star doctor to compare.
func (c *Coordinator) serveTool(conn transport.Conn) {
	host, _ := os.Hostname()
	self, _ := json.Marshal(map[string]any{
		"version": c.cfg.Program, "commit": c.cfg.Commit, "protocol": transport.Protocol, "host": host, "system": runtime.GOOS + "/" + runtime.GOARCH,
	})
	conn.SetWriteDeadline(time.Now().Add(c.cfg.SendTimeout))
	if err := transport.Send(conn, wire.Welcome{Rank: -1, Workers: c.cfg.Workers}, self); err != nil {
		return
	}
	for {
		conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		f, err := conn.Recv()
		if err != nil {
			return
		}
		conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
		switch f.Kind {
		case wire.KindPing:
			err = answerPing(conn, f)
		case wire.KindControl:
			err = c.answerControl(conn, f)
		default:
			err = fmt.Errorf("unexpected frame %v from a tool", f.Kind)
		}
		if err != nil {
			c.log.Warn("closing the connection of a tool", "peer", conn.Peer(), "reason", err)
			return
		}
	}
}

// answerPing answers a ping with as many bytes as it wants. More than the probe holds is an error,
// which ends the connection: a stranger cannot have us send without bound.
func answerPing(conn transport.Conn, f transport.Frame) error {
	m, err := wire.ParsePing(f.Header)
	if err != nil {
		return err
	}
	if err := conn.Discard(); err != nil {
		return err
	}
	if m.Want < 0 || m.Want > int64(len(probe)) {
		return fmt.Errorf("a ping wants %d bytes, at most %d", m.Want, len(probe))
	}
	return transport.Send(conn, wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}, probe[:m.Want])
}

// answerControl hands a command of star ctl to the event loop and sends what comes back. What the
// command does wrong is in the Reply; an error is one of the connection. It runs in the
// connection's goroutine, so it waits for the end of the job as well as for the answer.
func (c *Coordinator) answerControl(conn transport.Conn, f transport.Frame) error {
	m, err := wire.ParseControl(f.Header)
	if err != nil {
		return err
	}
	if err := conn.Discard(); err != nil {
		return err
	}
	answer := make(chan reply, 1)
	if !c.post(event{kind: wire.KindControl, seldom: &seldom{control: m.Args, reply: answer}}) {
		return transport.Send(conn, wire.Reply{Err: "the job is over"}, nil)
	}
	select {
	case r := <-answer:
		conn.SetWriteDeadline(time.Now().Add(30 * time.Second)) // a move may have taken long
		return transport.Send(conn, wire.Reply{Err: r.err}, r.json)
	case <-c.done:
		return transport.Send(conn, wire.Reply{Err: "the job is over"}, nil)
	}
}

// control carries out one command of star ctl. What is wrong with the command is in the reply, and
// no error; an error ends the job. Of a move the reply comes when it has ended.
func (c *Coordinator) control(e event) error {
	if len(e.control) > 0 && e.control[0] == "move" && c.engine != nil {
		if c.cfg.Validation != nil {
			e.reply <- reply{err: "shards do not move in a job with a validator (--baseline zeno++), which would not find them again"}
			return nil
		}
		return c.beginMove(e) // answered later
	}
	v, err := c.command(e.control)
	var r reply
	if err != nil {
		r.err = err.Error()
	} else {
		r.json, _ = json.Marshal(v)
	}
	e.reply <- r
	return nil
}

// command carries out one command and returns what is answered, as JSON. Errors say what was wrong
// with the command, and change nothing. A stop is known to whoever takes the job over before it is
// done: else a job that was told to end would go on.
func (c *Coordinator) command(args []string) (any, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no command; one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop")
	}
	verb, rest := args[0], args[1:]
	if verb != "status" && c.engine == nil {
		return nil, fmt.Errorf("%s: the training has not begun: waiting for %s", verb, c.missing())
	}
	switch {
	case verb == "status" && len(rest) == 0:
		return c.status(), nil
	case verb == "mode" && len(rest) == 1:
		return c.changeMode(rest[0], "star ctl")
	case verb == "set":
		return c.setThresholds(rest)
	case verb == "checkpoint" && len(rest) == 0:
		if c.cfg.Save == nil {
			return nil, fmt.Errorf("checkpoint: the job has no folder to write to (--out)")
		}
		c.saveNow = true
		c.milestones()
		return map[string]any{"version": c.engine.State().Version}, nil
	case verb == "stop" && len(rest) == 0:
		limit, err := c.stopStream("star ctl")
		if err != nil {
			return nil, err
		}
		return map[string]any{"samples": limit}, nil
	}
	return nil, fmt.Errorf("unknown command %q; one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop", strings.Join(args, " "))
}

// stopStream has nothing more of the stream handed out, so that the job ends when what is out was
// used. by says who wants that. The error is that the lease is lost.
func (c *Coordinator) stopStream(by string) (limit int64, err error) {
	limit = c.engine.State().Cursor
	if !c.persistHandover(func(e *Handover) { e.Limit = limit }) {
		return 0, c.leaseLost
	}
	c.engine.Stop()
	c.result.Ended = by
	c.cfg.RunLog.Write(c.elapsed(), runlog.Stop{Limit: limit, Why: by})
	c.log.Info("stopping", "at_samples", limit, "why", by)
	return limit, nil
}

// modeChange answers star ctl mode.
type modeChange struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Version int64  `json:"version"`
}

// changeMode has the job go on under another plan, in words of the grammar (docs/modes.md), or has
// the pilot decide again (auto). It is an error, and nothing has changed, if the plan does not fit
// the workers, the engine, or what was settled when the job began: how many gradients shards keep,
// and whether workers send gradients or steps. Shares and local steps stay as they are where the
// new plan says nothing of them. The answer is a modeChange. From here on the pilot is not heeded,
// until auto.
func (c *Coordinator) changeMode(spec, why string) (any, error) {
	if spec == "auto" {
		if c.cfg.Pilot == nil {
			return nil, fmt.Errorf("mode auto: the job was not begun with --mode auto, nothing watches it")
		}
		c.manual, c.given = false, ""
		if !c.auto.Enabled() && c.arch.planted() {
			c.auto = traffic.NewTree(c.cfg.Tree, c.cfg.Workers, nil)
		}
		now := c.engine.Plan().String()
		at := c.elapsed()
		line := runlog.Plan{Plan: now, From: now, Why: why + " mode auto", Predicted: runlog.Number(math.NaN())}
		c.cfg.RunLog.Write(at, line)
		c.tell(at, line)
		words := c.words(c.engine.Plan())
		return modeChange{From: words, To: words, Version: c.engine.State().Version}, nil
	}
	p, err := modes.Parse(spec, c.cfg.Workers)
	if err != nil {
		return nil, err
	}
	if c.replaceable() {
		if err := c.arch.replaceable(p); err != nil {
			return nil, err
		}
	}
	if p, err = c.uncut(p); err != nil {
		return nil, fmt.Errorf("mode %s: %w: set star.loader(divisible=True) in the program, or --whole-batches=false", spec, err)
	}
	if err := c.exchanges(p); err != nil {
		return nil, err
	}
	if err := c.engine.Fits(p); err != nil {
		return nil, err
	}
	for w, q := range c.workers {
		if q == nil {
			continue
		}
		hello := q.hello
		if !c.takesOthers(q) {
			hello.Addr = ""
		}
		if err := engine.TreeNeeds(p, w, hello); err != nil {
			return nil, err
		}
	}
	from := c.engine.Plan()
	if p.Shares == nil {
		p.Shares = from.Shares
	}
	switch { // what workers hand over is settled when the job begins
	case mostKept(p) > mostKept(c.cfg.Plan):
		return nil, fmt.Errorf("mode %v: shards keep %d gradients of workers that go on before an update is made, as the job's first mode wanted, not %d", p, mostKept(c.cfg.Plan), mostKept(p))
	case c.cfg.Strides:
	case p.Local > 0 && from.Local == 0:
		return nil, fmt.Errorf("mode %v: the workers of this job send gradients, and its settings have them make no steps of their own (docs/modes.md, Local steps)", p)
	case (p.Micro > 0 || p.Queue > 0) && from.Local > 0:
		return nil, fmt.Errorf("mode %v: the workers of this job train by themselves and send no gradients", p)
	case p.Local == 0:
		p.Local = from.Local
	}
	before := c.words(from)
	c.given = spec
	answer := modeChange{From: before, To: c.words(p), Version: c.engine.State().Version}
	c.manual = true
	p = c.plant(p)
	return answer, c.adopt(p, why)
}

// mostKept is how many gradients an update of p may be made of, where workers go on before it is made.
func mostKept(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}

// plant prepares an automatic tree, if p wants one: it comes when the load is known. A pilot's
// plans get one without asking for it, where the architecture has trees.
func (c *Coordinator) plant(p modes.Plan) modes.Plan {
	if c.auto = (traffic.Tree{}); p.AutoTree || c.cfg.Pilot != nil && !c.manual && c.arch.planted() {
		c.auto = traffic.NewTree(c.cfg.Tree, c.cfg.Workers, p.Parents)
		p.AutoTree = false
	}
	return p
}

// adopt installs another plan. An error ends the job; the caller has found that the plan fits.
func (c *Coordinator) adopt(p modes.Plan, why string) error {
	return c.install(p, runlog.Plan{Why: why})
}

// install makes p the plan, and writes line, which has the reason, and of a pilot's plan what it
// predicts, and when.
//
// Nothing happens where the plan is in force already, or the job is being saved to end. A successor
// knows of the plan before it is in force. Who waits under the old plan is used as it is by the new
// one (engine.Install).
func (c *Coordinator) install(p modes.Plan, line runlog.Plan) error {
	from := c.engine.Plan()
	if p = c.graft(p); p.Equal(from) || c.stopping.frozen {
		return nil
	}
	if !c.persistHandover(func(e *Handover) { e.Plan, e.Manual, e.Grows = p, c.manual, c.auto.Enabled() }) {
		return c.leaseLost
	}
	c.stats.Switches++
	c.refused = nil
	if InStep(p) {
		c.yield("another plan is installed: " + line.Why)
	}
	at := c.elapsed()
	line.Plan, line.From = p.String(), from.String()
	if line.After == 0 { // nobody has predicted anything
		line.Predicted = runlog.Number(math.NaN())
	}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
	c.log.Info("mode", "from", c.words(from), "to", c.words(p), "why", line.Why)
	return c.carry(c.engine.Install(p))
}
