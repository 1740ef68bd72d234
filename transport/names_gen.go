// Code generated from wire/messages.go by go generate; DO NOT EDIT.

package transport

import "star/transport/wire"

// The messages, under the names of this package.
type (
	Hello        = wire.Hello
	ShardInfo    = wire.ShardInfo
	Welcome      = wire.Welcome
	Reject       = wire.Reject
	Assign       = wire.Assign
	Ready        = wire.Ready
	Joined       = wire.Joined
	Arrive       = wire.Arrive
	Stored       = wire.Stored
	Gradient     = wire.Gradient
	Fire         = wire.Fire
	Norm         = wire.Norm
	Apply        = wire.Apply
	Action       = wire.Action
	Release      = wire.Release
	Piece        = wire.Piece
	Push         = wire.Push
	Params       = wire.Params
	Pull         = wire.Pull
	Init         = wire.Init
	Buffers      = wire.Buffers
	EvalResult   = wire.EvalResult
	Save         = wire.Save
	Saved        = wire.Saved
	Leave        = wire.Leave
	Control      = wire.Control
	Reply        = wire.Reply
	Ping         = wire.Ping
	Pong         = wire.Pong
	Rider        = wire.Rider
	Ring         = wire.Ring
	Formed       = wire.Formed
	Tally        = wire.Tally
	Fault        = wire.Fault
	Branch       = wire.Branch
	Below        = wire.Below
	Child        = wire.Child
	Share        = wire.Share
	Bundle       = wire.Bundle
	Detach       = wire.Detach
	Want         = wire.Want
	Compression  = wire.Compression
	Amounts      = wire.Amounts
	Enlist       = wire.Enlist
	Usage        = wire.Usage
	Lease        = wire.Lease
	Ask          = wire.Ask
	Grant        = wire.Grant
	Order        = wire.Order
	Obeyed       = wire.Obeyed
	Yield        = wire.Yield
	AdoptStage   = wire.AdoptStage
	Adopt        = wire.Adopt
	HandStage    = wire.HandStage
	Hand         = wire.Hand
	MovedStage   = wire.MovedStage
	Moved        = wire.Moved
	State        = wire.State
	Slot         = wire.Slot
	Route        = wire.Route
	Cancel       = wire.Cancel
	Computed     = wire.Computed
	Close        = wire.Close
	Poison       = wire.Poison
	Ballot       = wire.Ballot
	Standing     = wire.Standing
	ShardVersion = wire.ShardVersion
	Elsewhere    = wire.Elsewhere
	Holder       = wire.Holder
	View         = wire.View
	Held         = wire.Held
	Turn         = wire.Turn
	Ahead        = wire.Ahead
	Halt         = wire.Halt
	Kind         = wire.Kind
	Message      = wire.Message
	ParseError   = wire.ParseError
)

const (
	MaxHeader       = wire.MaxHeader
	MaxWorkers      = wire.MaxWorkers
	MaxShards       = wire.MaxShards
	MaxParams       = wire.MaxParams
	MaxCouncil      = wire.MaxCouncil
	MaxApplied      = wire.MaxApplied
	MaxLeases       = wire.MaxLeases
	MaxBelow        = wire.MaxBelow
	MaxPieces       = wire.MaxPieces
	MaxOptimizer    = wire.MaxOptimizer
	RoleServer      = wire.RoleServer
	RoleWorker      = wire.RoleWorker
	RoleTool        = wire.RoleTool
	RoleValidator   = wire.RoleValidator
	ServiceCoord    = wire.ServiceCoord
	ServiceShard    = wire.ServiceShard
	ServiceRing     = wire.ServiceRing
	ServiceTree     = wire.ServiceTree
	ServiceCluster  = wire.ServiceCluster
	ServiceElection = wire.ServiceElection
	Continue        = wire.Continue
	Evaluate        = wire.Evaluate
	Finish          = wire.Finish
	Stop            = wire.Stop
	Prepare         = wire.Prepare
	Own             = wire.Own
	Forget          = wire.Forget
	Give            = wire.Give
	Gone            = wire.Gone
	Keep            = wire.Keep
	Lend            = wire.Lend
	Shared          = wire.Shared
	Prepared        = wire.Prepared
	Loaded          = wire.Loaded
	Complete        = wire.Complete

	KindHello       = wire.KindHello
	KindWelcome     = wire.KindWelcome
	KindReject      = wire.KindReject
	KindAssign      = wire.KindAssign
	KindReady       = wire.KindReady
	KindJoined      = wire.KindJoined
	KindArrive      = wire.KindArrive
	KindStored      = wire.KindStored
	KindFire        = wire.KindFire
	KindNorm        = wire.KindNorm
	KindApply       = wire.KindApply
	KindRelease     = wire.KindRelease
	KindPush        = wire.KindPush
	KindParams      = wire.KindParams
	KindPull        = wire.KindPull
	KindInit        = wire.KindInit
	KindBuffers     = wire.KindBuffers
	KindEvalResult  = wire.KindEvalResult
	KindSave        = wire.KindSave
	KindSaved       = wire.KindSaved
	KindLeave       = wire.KindLeave
	KindControl     = wire.KindControl
	KindReply       = wire.KindReply
	KindPing        = wire.KindPing
	KindPong        = wire.KindPong
	KindRing        = wire.KindRing
	KindFormed      = wire.KindFormed
	KindTally       = wire.KindTally
	KindFault       = wire.KindFault
	KindBranch      = wire.KindBranch
	KindBundle      = wire.KindBundle
	KindDetach      = wire.KindDetach
	KindWant        = wire.KindWant
	KindCompression = wire.KindCompression
	KindEnlist      = wire.KindEnlist
	KindUsage       = wire.KindUsage
	KindAsk         = wire.KindAsk
	KindGrant       = wire.KindGrant
	KindOrder       = wire.KindOrder
	KindObeyed      = wire.KindObeyed
	KindYield       = wire.KindYield
	KindAdopt       = wire.KindAdopt
	KindHand        = wire.KindHand
	KindMoved       = wire.KindMoved
	KindState       = wire.KindState
	KindSlot        = wire.KindSlot
	KindRoute       = wire.KindRoute
	KindCancel      = wire.KindCancel
	KindComputed    = wire.KindComputed
	KindClose       = wire.KindClose
	KindPoison      = wire.KindPoison
	KindBallot      = wire.KindBallot
	KindStanding    = wire.KindStanding
	KindElsewhere   = wire.KindElsewhere
	KindView        = wire.KindView
	KindHeld        = wire.KindHeld
	KindTurn        = wire.KindTurn
	KindAhead       = wire.KindAhead
	KindHalt        = wire.KindHalt

	lastKind = wire.LastKind
)

// ParseHello parses the header of a Hello into fresh memory. Other bytes than such a header are a *ParseError.
func ParseHello(b []byte) (Hello, error) { return wire.ParseHello(b) }

// ParseWelcome parses the header of a Welcome into fresh memory. Other bytes than such a header are a *ParseError.
func ParseWelcome(b []byte) (Welcome, error) { return wire.ParseWelcome(b) }

// ParseReject parses the header of a Reject into fresh memory. Other bytes than such a header are a *ParseError.
func ParseReject(b []byte) (Reject, error) { return wire.ParseReject(b) }

// ParseAssign parses the header of an Assign into fresh memory. Other bytes than such a header are a *ParseError.
func ParseAssign(b []byte) (Assign, error) { return wire.ParseAssign(b) }

// ParseReady parses the header of a Ready into fresh memory. Other bytes than such a header are a *ParseError.
func ParseReady(b []byte) (Ready, error) { return wire.ParseReady(b) }

// ParseJoined parses the header of a Joined into fresh memory. Other bytes than such a header are a *ParseError.
func ParseJoined(b []byte) (Joined, error) { return wire.ParseJoined(b) }

// ParseArrive parses the header of an Arrive into fresh memory. Other bytes than such a header are a *ParseError.
func ParseArrive(b []byte) (Arrive, error) { return wire.ParseArrive(b) }

// ParseStored parses the header of a Stored into fresh memory. Other bytes than such a header are a *ParseError.
func ParseStored(b []byte) (Stored, error) { return wire.ParseStored(b) }

// ParseFire parses the header of a Fire into fresh memory. Other bytes than such a header are a *ParseError.
func ParseFire(b []byte) (Fire, error) { return wire.ParseFire(b) }

// ParseNorm parses the header of a Norm into fresh memory. Other bytes than such a header are a *ParseError.
func ParseNorm(b []byte) (Norm, error) { return wire.ParseNorm(b) }

// ParseApply parses the header of an Apply into fresh memory. Other bytes than such a header are a *ParseError.
func ParseApply(b []byte) (Apply, error) { return wire.ParseApply(b) }

// ParseRelease parses the header of a Release into fresh memory. Other bytes than such a header are a *ParseError.
func ParseRelease(b []byte) (Release, error) { return wire.ParseRelease(b) }

// ParsePush parses the header of a Push into fresh memory. Other bytes than such a header are a *ParseError.
func ParsePush(b []byte) (Push, error) { return wire.ParsePush(b) }

// ParseParams parses the header of a Params into fresh memory. Other bytes than such a header are a *ParseError.
func ParseParams(b []byte) (Params, error) { return wire.ParseParams(b) }

// ParsePull parses the header of a Pull into fresh memory. Other bytes than such a header are a *ParseError.
func ParsePull(b []byte) (Pull, error) { return wire.ParsePull(b) }

// ParseInit parses the header of an Init into fresh memory. Other bytes than such a header are a *ParseError.
func ParseInit(b []byte) (Init, error) { return wire.ParseInit(b) }

// ParseBuffers parses the header of a Buffers into fresh memory. Other bytes than such a header are a *ParseError.
func ParseBuffers(b []byte) (Buffers, error) { return wire.ParseBuffers(b) }

// ParseEvalResult parses the header of an EvalResult into fresh memory. Other bytes than such a header are a *ParseError.
func ParseEvalResult(b []byte) (EvalResult, error) { return wire.ParseEvalResult(b) }

// ParseSave parses the header of a Save into fresh memory. Other bytes than such a header are a *ParseError.
func ParseSave(b []byte) (Save, error) { return wire.ParseSave(b) }

// ParseSaved parses the header of a Saved into fresh memory. Other bytes than such a header are a *ParseError.
func ParseSaved(b []byte) (Saved, error) { return wire.ParseSaved(b) }

// ParseLeave parses the header of a Leave into fresh memory. Other bytes than such a header are a *ParseError.
func ParseLeave(b []byte) (Leave, error) { return wire.ParseLeave(b) }

// ParseControl parses the header of a Control into fresh memory. Other bytes than such a header are a *ParseError.
func ParseControl(b []byte) (Control, error) { return wire.ParseControl(b) }

// ParseReply parses the header of a Reply into fresh memory. Other bytes than such a header are a *ParseError.
func ParseReply(b []byte) (Reply, error) { return wire.ParseReply(b) }

// ParsePing parses the header of a Ping into fresh memory. Other bytes than such a header are a *ParseError.
func ParsePing(b []byte) (Ping, error) { return wire.ParsePing(b) }

// ParsePong parses the header of a Pong into fresh memory. Other bytes than such a header are a *ParseError.
func ParsePong(b []byte) (Pong, error) { return wire.ParsePong(b) }

// ParseRing parses the header of a Ring into fresh memory. Other bytes than such a header are a *ParseError.
func ParseRing(b []byte) (Ring, error) { return wire.ParseRing(b) }

// ParseFormed parses the header of a Formed into fresh memory. Other bytes than such a header are a *ParseError.
func ParseFormed(b []byte) (Formed, error) { return wire.ParseFormed(b) }

// ParseTally parses the header of a Tally into fresh memory. Other bytes than such a header are a *ParseError.
func ParseTally(b []byte) (Tally, error) { return wire.ParseTally(b) }

// ParseFault parses the header of a Fault into fresh memory. Other bytes than such a header are a *ParseError.
func ParseFault(b []byte) (Fault, error) { return wire.ParseFault(b) }

// ParseBranch parses the header of a Branch into fresh memory. Other bytes than such a header are a *ParseError.
func ParseBranch(b []byte) (Branch, error) { return wire.ParseBranch(b) }

// ParseBundle parses the header of a Bundle into fresh memory. Other bytes than such a header are a *ParseError.
func ParseBundle(b []byte) (Bundle, error) { return wire.ParseBundle(b) }

// ParseDetach parses the header of a Detach into fresh memory. Other bytes than such a header are a *ParseError.
func ParseDetach(b []byte) (Detach, error) { return wire.ParseDetach(b) }

// ParseWant parses the header of a Want into fresh memory. Other bytes than such a header are a *ParseError.
func ParseWant(b []byte) (Want, error) { return wire.ParseWant(b) }

// ParseCompression parses the header of a Compression into fresh memory. Other bytes than such a header are a *ParseError.
func ParseCompression(b []byte) (Compression, error) { return wire.ParseCompression(b) }

// ParseEnlist parses the header of an Enlist into fresh memory. Other bytes than such a header are a *ParseError.
func ParseEnlist(b []byte) (Enlist, error) { return wire.ParseEnlist(b) }

// ParseUsage parses the header of a Usage into fresh memory. Other bytes than such a header are a *ParseError.
func ParseUsage(b []byte) (Usage, error) { return wire.ParseUsage(b) }

// ParseAsk parses the header of an Ask into fresh memory. Other bytes than such a header are a *ParseError.
func ParseAsk(b []byte) (Ask, error) { return wire.ParseAsk(b) }

// ParseGrant parses the header of a Grant into fresh memory. Other bytes than such a header are a *ParseError.
func ParseGrant(b []byte) (Grant, error) { return wire.ParseGrant(b) }

// ParseOrder parses the header of an Order into fresh memory. Other bytes than such a header are a *ParseError.
func ParseOrder(b []byte) (Order, error) { return wire.ParseOrder(b) }

// ParseObeyed parses the header of an Obeyed into fresh memory. Other bytes than such a header are a *ParseError.
func ParseObeyed(b []byte) (Obeyed, error) { return wire.ParseObeyed(b) }

// ParseYield parses the header of a Yield into fresh memory. Other bytes than such a header are a *ParseError.
func ParseYield(b []byte) (Yield, error) { return wire.ParseYield(b) }

// ParseAdopt parses the header of an Adopt into fresh memory. Other bytes than such a header are a *ParseError.
func ParseAdopt(b []byte) (Adopt, error) { return wire.ParseAdopt(b) }

// ParseHand parses the header of a Hand into fresh memory. Other bytes than such a header are a *ParseError.
func ParseHand(b []byte) (Hand, error) { return wire.ParseHand(b) }

// ParseMoved parses the header of a Moved into fresh memory. Other bytes than such a header are a *ParseError.
func ParseMoved(b []byte) (Moved, error) { return wire.ParseMoved(b) }

// ParseState parses the header of a State into fresh memory. Other bytes than such a header are a *ParseError.
func ParseState(b []byte) (State, error) { return wire.ParseState(b) }

// ParseSlot parses the header of a Slot into fresh memory. Other bytes than such a header are a *ParseError.
func ParseSlot(b []byte) (Slot, error) { return wire.ParseSlot(b) }

// ParseRoute parses the header of a Route into fresh memory. Other bytes than such a header are a *ParseError.
func ParseRoute(b []byte) (Route, error) { return wire.ParseRoute(b) }

// ParseCancel parses the header of a Cancel into fresh memory. Other bytes than such a header are a *ParseError.
func ParseCancel(b []byte) (Cancel, error) { return wire.ParseCancel(b) }

// ParseComputed parses the header of a Computed into fresh memory. Other bytes than such a header are a *ParseError.
func ParseComputed(b []byte) (Computed, error) { return wire.ParseComputed(b) }

// ParseClose parses the header of a Close into fresh memory. Other bytes than such a header are a *ParseError.
func ParseClose(b []byte) (Close, error) { return wire.ParseClose(b) }

// ParsePoison parses the header of a Poison into fresh memory. Other bytes than such a header are a *ParseError.
func ParsePoison(b []byte) (Poison, error) { return wire.ParsePoison(b) }

// ParseBallot parses the header of a Ballot into fresh memory. Other bytes than such a header are a *ParseError.
func ParseBallot(b []byte) (Ballot, error) { return wire.ParseBallot(b) }

// ParseStanding parses the header of a Standing into fresh memory. Other bytes than such a header are a *ParseError.
func ParseStanding(b []byte) (Standing, error) { return wire.ParseStanding(b) }

// ParseElsewhere parses the header of an Elsewhere into fresh memory. Other bytes than such a header are a *ParseError.
func ParseElsewhere(b []byte) (Elsewhere, error) { return wire.ParseElsewhere(b) }

// ParseView parses the header of a View into fresh memory. Other bytes than such a header are a *ParseError.
func ParseView(b []byte) (View, error) { return wire.ParseView(b) }

// ParseHeld parses the header of a Held into fresh memory. Other bytes than such a header are a *ParseError.
func ParseHeld(b []byte) (Held, error) { return wire.ParseHeld(b) }

// ParseTurn parses the header of a Turn into fresh memory. Other bytes than such a header are a *ParseError.
func ParseTurn(b []byte) (Turn, error) { return wire.ParseTurn(b) }

// ParseAhead parses the header of an Ahead into fresh memory. Other bytes than such a header are a *ParseError.
func ParseAhead(b []byte) (Ahead, error) { return wire.ParseAhead(b) }

// ParseHalt parses the header of a Halt into fresh memory. Other bytes than such a header are a *ParseError.
func ParseHalt(b []byte) (Halt, error) { return wire.ParseHalt(b) }
