package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Audience is what tokens must be made for.
const Audience = "nsp.meridio.nordix.org"

// Token is what a verified one says.
type Token struct {
	Account ServiceAccount
	// Pod is zero where the token is not bound to one.
	Pod             Pod
	Issued, Expires time.Time
}

// Verifier finds out whether a token is good. A refusal, which wraps ErrUnproven, says that it is not; any other error says
// that this could not be found out.
type Verifier interface {
	Verify(ctx context.Context, raw string) (Token, error)
}

// ErrUnverified is wrapped where nobody could say whether a token is good.
var ErrUnverified = errors.New("the token cannot be verified now")

// TokensConfig says how tokens are verified.
type TokensConfig struct {
	Verifier Verifier
	// Departed are the pods of which the verifier is asked more often. Optional.
	Departed *Departed
	// Failures bounds failed authentications.
	Failures FailureLimits
	Log      *slog.Logger
}

const (
	// keepGood, keepDeparted and keepBad are how long the verifier is not asked again. The API server itself may believe the token
	// of a pod that is gone for 10 s more.
	keepGood, keepDeparted, keepBad = time.Minute, 5 * time.Second, 10 * time.Second
	// patience is how long a known caller waits for the verifier before the last answer counts; retryAfter is how long nobody
	// known waits for it again then.
	patience, retryAfter = time.Second, 5 * time.Second
	// verifyTimeout bounds one question to the verifier.
	verifyTimeout = 5 * time.Second
	// verifying bounds the questions that are open at a time, of known callers and of unknown ones, and perPeer those of one
	// unknown peer.
	verifying, perPeer = 16, 4
	// maxToken and maxTokens bound the size of a token in bytes, and how many are remembered.
	maxToken, maxTokens = 16 << 10, 200_000
)

type digest [sha256.Size]byte

// known is the last answer on one token.
type known struct {
	token Token
	// bad is the refusal of a bad one.
	bad error
	// until is when the verifier is to be asked again.
	until time.Time
}

// Tokens says what the tokens of callers prove, and remembers it for a while. Those who are known go on while the verifier is
// slow or away, until their tokens expire.
type Tokens struct {
	cfg      TokensConfig
	flights  singleflight.Group
	failures *failures
	// oldSlots and newSlots are for known and unknown callers: a crowd of the latter does not keep the former waiting.
	oldSlots, newSlots chan struct{}

	// clock is time.Now. How long answers count goes by the monotonic clock, only the end of tokens by the wall clock.
	clock func() time.Time

	mu    sync.Mutex
	known map[digest]known
	byPod map[string]map[digest]struct{}
	// latest are the pods that bear their names now.
	latest namesakes
	// away is until when the verifier counts as away.
	away time.Time
	// asking counts the questions that each unknown peer has open.
	asking map[netip.Addr]int
}

// NewTokens makes one that knows nobody.
func NewTokens(cfg TokensConfig) *Tokens {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Tokens{
		cfg: cfg, failures: newFailures(cfg.Failures), clock: time.Now,
		oldSlots: make(chan struct{}, verifying), newSlots: make(chan struct{}, verifying),
		known: make(map[digest]known), byPod: make(map[string]map[digest]struct{}), latest: make(namesakes), asking: make(map[netip.Addr]int),
	}
}

// Check says what the token that the peer shows proves.
func (t *Tokens) Check(ctx context.Context, peer netip.Addr, raw string) (Token, error) {
	if len(raw) > maxToken {
		return Token{}, Unproven(BadToken, "the token has %d bytes; %d are allowed", len(raw), maxToken)
	}
	d := digest(sha256.Sum256([]byte(raw)))
	last, fresh := t.lookup(d)
	switch {
	case last.token.expired(t.clock()):
		return Token{}, errExpired(last.token)
	case last.bad != nil && fresh:
		return Token{}, last.bad
	case fresh:
		return last.token, nil
	case last.token != (Token{}):
		return t.again(ctx, d, raw, last.token)
	}
	return t.first(ctx, peer, d, raw)
}

func (t *Tokens) lookup(d digest) (last known, fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.known[d]
	now := t.clock()
	return last, ok && (now.Before(last.until) || last.bad == nil && now.Before(t.away))
}

// again asks about a token that was good before. Only a refusal changes that.
func (t *Tokens) again(ctx context.Context, d digest, raw string, last Token) (Token, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-t.ask(ctx, d, raw, t.oldSlots):
		token, _ := r.Val.(Token)
		if r.Err == nil || errors.Is(r.Err, ErrUnproven) {
			return token, r.Err
		}
		t.excuse(ctx, r.Err)
	case <-timer.C:
		t.excuse(ctx, errors.New("no answer in time"))
	case <-ctx.Done():
		return Token{}, fmt.Errorf("verifying the token: %w", ctx.Err())
	}
	return last, nil
}

// excuse lets those who are known go on without being asked for.
func (t *Tokens) excuse(ctx context.Context, err error) {
	t.mu.Lock()
	first := t.clock().After(t.away)
	t.away = t.clock().Add(retryAfter)
	t.mu.Unlock()
	if first {
		t.cfg.Log.WarnContext(ctx, "tokens cannot be verified; those known count until they expire", "error", err)
	}
}

// first asks about a token that is not known to be good.
func (t *Tokens) first(ctx context.Context, peer netip.Addr, d digest, raw string) (Token, error) {
	if err := t.failures.allow(peer); err != nil {
		return Token{}, err
	}
	if !t.begin(peer) {
		return Token{}, TooMany(FailsTooOften, "%d tokens of %s are being verified", perPeer, peer)
	}
	defer t.finish(peer)
	select {
	case r := <-t.ask(ctx, d, raw, t.newSlots):
		token, _ := r.Val.(Token)
		if errors.Is(r.Err, ErrUnproven) {
			t.failures.failed(peer)
		}
		return token, r.Err
	case <-ctx.Done():
		return Token{}, fmt.Errorf("verifying the token: %w", ctx.Err())
	}
}

func (t *Tokens) begin(peer netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking[peer] >= perPeer && !peer.IsLoopback() {
		return false
	}
	t.asking[peer]++
	return true
}

func (t *Tokens) finish(peer netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking[peer]--; t.asking[peer] == 0 {
		delete(t.asking, peer)
	}
}

// ask asks the verifier, once for all who show the same token. The question outlives the caller, for the sake of the others.
func (t *Tokens) ask(ctx context.Context, d digest, raw string, slots chan struct{}) <-chan singleflight.Result {
	return t.flights.DoChan(string(d[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return Token{}, fmt.Errorf("%w: too many are being verified", ErrUnverified)
		}
		token, err := t.cfg.Verifier.Verify(ctx, raw)
		switch {
		case errors.Is(err, ErrUnproven):
			t.remember(d, known{bad: err, until: t.clock().Add(keepBad)})
			return Token{}, err
		case err != nil:
			return Token{}, fmt.Errorf("%w: %w", ErrUnverified, err)
		case token.expired(t.clock()):
			return Token{}, errExpired(token)
		}
		t.remember(d, known{token: token, until: t.clock().Add(keepGood)})
		return token, nil
	})
}

func (t *Tokens) remember(d digest, k known) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(d)
	if len(t.known) >= maxTokens {
		t.makeRoom()
	}
	// This is asked with the lock held: a pod that leaves later has its tokens forgotten.
	if uid := k.token.Pod.UID; t.cfg.Departed != nil && t.cfg.Departed.Has(uid) {
		t.cfg.Departed.found(uid, true)
		k.until = t.clock().Add(keepDeparted)
	}
	t.known[d] = k
	if uid := k.token.Pod.UID; uid != "" {
		if t.byPod[uid] == nil {
			t.byPod[uid] = make(map[digest]struct{})
		}
		t.byPod[uid][d] = struct{}{}
		if over := t.latest.show(k.token); over != "" && t.cfg.Departed != nil {
			t.cfg.Departed.over(over)
		}
	}
	if k.bad == nil {
		t.away = time.Time{}
	}
}

// makeRoom forgets what is of no use any more, and if that is nothing, anything.
func (t *Tokens) makeRoom() {
	now := t.clock()
	for d, k := range t.known {
		if k.token.expired(now) || k.bad != nil && now.After(k.until) {
			t.forget(d)
		}
	}
	for d := range t.known {
		if len(t.known) < maxTokens {
			return
		}
		t.forget(d)
	}
}

// forget is called with the lock held.
func (t *Tokens) forget(d digest) {
	k, ok := t.known[d]
	if !ok {
		return
	}
	delete(t.known, d)
	if tokens := t.byPod[k.token.Pod.UID]; tokens != nil {
		if delete(tokens, d); len(tokens) == 0 {
			delete(t.byPod, k.token.Pod.UID)
			t.latest.forget(k.token.Pod)
		}
	}
}

// Ended tells whether a pod has ended whose token was good before, which is asked again where the pod has left its slices; the error
// is why its token is refused, nil where it is not or nobody can say.
func (t *Tokens) Ended(ctx context.Context, peer netip.Addr, podUID, raw string) error {
	if t.cfg.Departed == nil || !t.cfg.Departed.Has(podUID) {
		return nil
	}
	_, err := t.Check(ctx, peer, raw)
	if !errors.Is(err, ErrUnproven) {
		return nil
	}
	t.cfg.Departed.found(podUID, false)
	return err
}

// Left has something whenever pods have left their slices since it was last read, so that Ended can be asked about them; nil is
// never. It is for one reader.
func (t *Tokens) Left() <-chan struct{} {
	if t.cfg.Departed == nil {
		return nil
	}
	return t.cfg.Departed.Left()
}

// Forget has the tokens of a pod verified again when they are shown next, because it has left its slices. It does not block.
func (t *Tokens) Forget(podUID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d := range t.byPod[podUID] {
		t.forget(d)
	}
}

// expired tells whether a token is over by the wall clock, which is what it is made by.
func (t Token) expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

func errExpired(t Token) error {
	return Unproven(ExpiredToken, "the token expired at %s", t.Expires.UTC().Format(time.RFC3339))
}
