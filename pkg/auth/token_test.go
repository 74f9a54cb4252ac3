package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
)

const issuer = "https://kubernetes.default.svc"

// signer signs tokens as a cluster does.
type signer struct {
	id  string
	key *ecdsa.PrivateKey
}

func newSigner(t testing.TB, id string) signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return signer{id, key}
}

func (s signer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.key.Public(), KeyID: s.id, Algorithm: string(jose.ES256), Use: "sig"}
}

func (s signer) sign(t testing.TB, c any) string {
	sig, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	require.NoError(t, err)
	raw, err := jwt.Signed(sig).Claims(c).Serialize()
	require.NoError(t, err)
	return raw
}

// bound are the claims of a good token that lives for an hour.
func bound() claims {
	c := claims{Claims: jwt.Claims{
		Issuer: issuer, Subject: "system:serviceaccount:red:web", Audience: jwt.Audience{Audience},
		Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)), IssuedAt: jwt.NewNumericDate(time.Now()),
		NotBefore: jwt.NewNumericDate(time.Now()),
	}}
	c.Kubernetes.Namespace, c.Kubernetes.Account.Name = "red", "web"
	c.Kubernetes.Pod = named{Name: "web-0", UID: "uid-0"}
	return c
}

// cluster publishes keys.
type cluster struct {
	mu    sync.Mutex
	keys  []jose.JSONWebKey
	down  error
	asked int
	gone  bool

	departed Departed
}

func (c *cluster) fetch(context.Context) (Keys, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return Keys{Issuer: issuer, Set: jose.JSONWebKeySet{Keys: c.keys}}, c.down
}

func (c *cluster) lives(context.Context, Pod) (bool, error) { return !c.gone, c.down }

func (c *cluster) local() *Local {
	return NewLocal(LocalConfig{Audience: Audience, Fetch: c.fetch, Lives: c.lives, Departed: &c.departed, Log: slog.New(slog.DiscardHandler)})
}

func reasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Reason
	}
	return ""
}

func TestLocalVerification(t *testing.T) {
	good, other := newSigner(t, "k1"), newSigner(t, "k1")
	unknown := newSigner(t, "k9")
	for name, tt := range map[string]struct {
		by   signer
		edit func(*claims)
		why  Reason
	}{
		"good":                   {good, func(*claims) {}, ""},
		"several audiences":      {good, func(c *claims) { c.Audience = jwt.Audience{"api", Audience} }, ""},
		"forged":                 {other, func(*claims) {}, BadToken},
		"of no key of ours":      {unknown, func(*claims) {}, BadToken},
		"expired":                {good, func(c *claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Second)) }, ExpiredToken},
		"never expires":          {good, func(c *claims) { c.Expiry = nil }, BadToken},
		"not valid yet":          {good, func(c *claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Minute)) }, BadToken},
		"for the API server":     {good, func(c *claims) { c.Audience = jwt.Audience{issuer} }, WrongAudience},
		"for nobody":             {good, func(c *claims) { c.Audience = nil }, WrongAudience},
		"of another cluster":     {good, func(c *claims) { c.Issuer = "https://elsewhere" }, BadToken},
		"of a person":            {good, func(c *claims) { c.Subject = "admin" }, BadToken},
		"of another account":     {good, func(c *claims) { c.Subject = "system:serviceaccount:blue:web" }, BadToken},
		"of a split name":        {good, func(c *claims) { c.Kubernetes.Namespace = "red:web"; c.Kubernetes.Account.Name = "" }, BadToken},
		"of the issuer's future": {good, func(c *claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(5 * time.Second)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := (&cluster{keys: []jose.JSONWebKey{good.public()}}).local()
			c := bound()
			tt.edit(&c)
			token, err := l.Verify(t.Context(), tt.by.sign(t, c))
			require.Equal(t, tt.why, reasonOf(err), "%v", err)
			if tt.why != "" {
				require.ErrorIs(t, err, ErrUnproven)
				require.Zero(t, token)
				return
			}
			require.NoError(t, err)
			require.Equal(t, ServiceAccount{"red", "web"}, token.Account)
			require.Equal(t, Pod{"red", "web-0", "uid-0"}, token.Pod)
			require.WithinDuration(t, time.Now().Add(time.Hour), token.Expires, 2*time.Second)
		})
	}
}

// Tokens that nobody should be able to make, and such as are no tokens at all.
func TestLocalRefusesWhatIsNoToken(t *testing.T) {
	good := newSigner(t, "k1")
	l := (&cluster{keys: []jose.JSONWebKey{good.public()}}).local()
	raw := good.sign(t, bound())
	parts := strings.Split(raw, ".")
	symmetric, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(strings.Repeat("k", 32))},
		(&jose.SignerOptions{}).WithHeader("kid", "k1"))
	require.NoError(t, err)
	hmac, err := jwt.Signed(symmetric).Claims(bound()).Serialize()
	require.NoError(t, err)
	for name, token := range map[string]string{
		"empty":            "",
		"words":            "let me in",
		"two parts":        parts[0] + "." + parts[1],
		"no signature":     parts[0] + "." + parts[1] + ".",
		"other claims":     parts[0] + "." + parts[0] + "." + parts[2],
		"unsigned":         "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"symmetric":        hmac,
		"of an HTML error": "<html>",
	} {
		_, err := l.Verify(t.Context(), token)
		require.Equal(t, BadToken, reasonOf(err), "%s: %v", name, err)
	}
}

// A cluster changes its key; tokens of both are good while it publishes both. Names of keys that nobody has do not make us ask
// again and again.
func TestKeysRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newSigner(t, "k1"), newSigner(t, "k2")
		c := &cluster{keys: []jose.JSONWebKey{first.public()}}
		l := c.local()
		verify := func(s signer) error {
			_, err := l.Verify(t.Context(), s.sign(t, bound()))
			return err
		}
		require.NoError(t, verify(first))
		c.keys = append(c.keys, second.public())
		require.Equal(t, BadToken, reasonOf(verify(second)), "they were read a moment ago")
		time.Sleep(refreshAtMost)
		require.NoError(t, verify(second))
		require.NoError(t, verify(first))
		require.Equal(t, 2, c.asked)
		for range 1000 {
			require.Error(t, verify(newSigner(t, "k3")))
		}
		require.LessOrEqual(t, c.asked, 3)

		c.down = errors.New("connection refused")
		time.Sleep(time.Hour)
		require.NoError(t, verify(first), "the last keys count while the cluster is away")
		c.down, c.keys = nil, c.keys[1:]
		time.Sleep(refreshEvery)
		require.NoError(t, verify(second))
		require.Equal(t, BadToken, reasonOf(verify(first)), "a key that is no more")
	})
}

func TestNoKeysYet(t *testing.T) {
	s := newSigner(t, "k1")
	c := &cluster{down: errors.New("connection refused")}
	_, err := c.local().Verify(t.Context(), s.sign(t, bound()))
	require.ErrorContains(t, err, "connection refused")
	require.NotErrorIs(t, err, ErrUnproven)
	kept := Keys{Issuer: issuer, Set: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.public()}}}
	l := NewLocal(LocalConfig{Audience: Audience, Fetch: c.fetch, First: &kept, Log: slog.New(slog.DiscardHandler)})
	_, err = l.Verify(t.Context(), s.sign(t, bound()))
	require.NoError(t, err, "those of the last run")
}

// Only of a pod that has left its slices it is asked whether it is still there.
func TestLocalSeesADeletedPodThroughItsSlices(t *testing.T) {
	s := newSigner(t, "k1")
	c := &cluster{keys: []jose.JSONWebKey{s.public()}, gone: true}
	l := c.local()
	verify := func() error {
		_, err := l.Verify(t.Context(), s.sign(t, bound()))
		return err
	}
	require.NoError(t, verify())
	c.departed.Listed("uid-0", true)
	require.NoError(t, verify())
	c.departed.Listed("uid-0", false)
	require.Equal(t, BadToken, reasonOf(verify()))
	c.gone = false
	require.NoError(t, verify(), "it only lost its label")
	c.down = errors.New("forbidden")
	require.NoError(t, verify(), "nobody can say")
}

// verifier answers what the test says.
type verifier struct {
	mu     sync.Mutex
	answer func(raw string) (Token, error)
	asked  atomic.Int64
	hang   chan struct{}
}

func (v *verifier) Verify(ctx context.Context, raw string) (Token, error) {
	v.asked.Add(1)
	v.mu.Lock()
	answer, hang := v.answer, v.hang
	v.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return Token{}, ctx.Err()
		}
	}
	return answer(raw)
}

func (v *verifier) set(answer func(string) (Token, error), hang chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer, v.hang = answer, hang
}

var peer = netip.MustParseAddr("10.0.0.7")

func goodFor(life time.Duration) func(string) (Token, error) {
	expires := time.Now().Add(life)
	return func(raw string) (Token, error) {
		return Token{Account: ServiceAccount{"red", "web"}, Pod: Pod{"red", raw, "uid-" + raw}, Expires: expires}, nil
	}
}

func refuse(string) (Token, error) { return Token{}, Unproven(BadToken, "who?") }
func away(string) (Token, error)   { return Token{}, errors.New("connection refused") }

func bubbled(t *testing.T, limits FailureLimits, test func(t *testing.T, v *verifier, check func(raw string) error, tokens *Tokens)) {
	synctest.Test(t, func(t *testing.T) {
		v := &verifier{answer: goodFor(time.Hour)}
		tokens := NewTokens(TokensConfig{Verifier: v, Failures: limits})
		test(t, v, func(raw string) error {
			_, err := tokens.Check(t.Context(), peer, raw)
			return err
		}, tokens)
	})
}

func TestTokensAreRememberedForAMinute(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
		for range 100 {
			require.NoError(t, check("a"))
		}
		require.EqualValues(t, 1, v.asked.Load())
		v.set(refuse, nil)
		time.Sleep(keepGood - time.Second)
		require.NoError(t, check("a"))
		time.Sleep(time.Second)
		require.Equal(t, BadToken, reasonOf(check("a")))
		require.EqualValues(t, 2, v.asked.Load())
		require.Equal(t, BadToken, reasonOf(check("a")))
		require.EqualValues(t, 2, v.asked.Load(), "a refusal is remembered too")
		v.set(goodFor(time.Hour), nil)
		time.Sleep(keepBad)
		require.NoError(t, check("a"))
	})
}

func TestTokensOfAPodThatLeft(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
		require.NoError(t, check("a"))
		require.NoError(t, check("b"))
		v.set(refuse, nil)
		tokens.Forget("uid-a")
		require.Equal(t, BadToken, reasonOf(check("a")))
		require.NoError(t, check("b"), "the other pod is as it was")
		require.Len(t, tokens.byPod, 1)

		v.set(goodFor(time.Hour), nil)
		tokens.cfg.Departed = &Departed{}
		tokens.cfg.Departed.Listed("uid-c", false)
		require.NoError(t, check("c"), "the API server has not noticed")
		v.set(refuse, nil)
		time.Sleep(keepDeparted)
		require.Equal(t, BadToken, reasonOf(check("c")))
	})
}

// A pod that leaves its slices while its token is verified is not believed for longer than one that left before.
func TestPodLeavesWhileItsTokenIsVerified(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
		tokens.cfg.Departed = &Departed{}
		good := goodFor(time.Hour)
		v.set(func(raw string) (Token, error) {
			token, err := good(raw)
			tokens.cfg.Departed.Listed("uid-a", false)
			tokens.Forget("uid-a")
			return token, err
		}, nil)
		require.NoError(t, check("a"))
		v.set(refuse, nil)
		time.Sleep(keepDeparted)
		require.Equal(t, BadToken, reasonOf(check("a")))
	})
}

// Others may have what a pod registered that left its slices, unless it has shown that it is still there.
func TestGone(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
		d := &Departed{}
		tokens.cfg.Departed = d
		require.NoError(t, check("a"))
		require.False(t, d.Gone("uid-a"))
		d.Listed("uid-a", false)
		require.True(t, d.Gone("uid-a"))
		require.Len(t, d.Left(), 1)
		tokens.Forget("uid-a")
		require.NoError(t, tokens.Ended(t.Context(), peer, "uid-a", "a"))
		require.False(t, d.Gone("uid-a"), "it is there")
		time.Sleep(foundLately + time.Second)
		require.True(t, d.Gone("uid-a"), "nothing was heard of it since")
		v.set(away, nil)
		require.NoError(t, tokens.Ended(t.Context(), peer, "uid-a", "a"), "nobody can say")
		v.set(refuse, nil)
		time.Sleep(retryAfter + time.Second)
		require.Equal(t, BadToken, reasonOf(tokens.Ended(t.Context(), peer, "uid-a", "a")))
		require.NoError(t, tokens.Ended(t.Context(), peer, "uid-b", "b"), "it has not left")
		d.Listed("uid-a", true)
		require.False(t, d.Gone("uid-a"))
	})
}

// The verifier is away, or answers late: who is known goes on until the token expires, and waits once in a while at most; who is
// new is told to come back.
func TestVerifierAway(t *testing.T) {
	hang := make(chan struct{})
	for name, fail := range map[string]func(*verifier){
		"refuses":     func(v *verifier) { v.set(away, nil) },
		"never ends":  func(v *verifier) { v.set(away, make(chan struct{})) },
		"ends at all": func(v *verifier) { v.set(goodFor(time.Hour), hang) },
	} {
		t.Run(name, func(t *testing.T) {
			bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
				v.set(goodFor(10*time.Minute), nil)
				began := time.Now()
				require.NoError(t, check("a"))
				if name == "ends at all" {
					hang = make(chan struct{}) // of the bubble
				}
				fail(v)
				time.Sleep(keepGood)
				waited := time.Duration(0)
				for time.Since(began) < 9*time.Minute {
					start := time.Now()
					require.NoError(t, check("a"))
					waited = max(waited, time.Since(start))
					time.Sleep(time.Second)
				}
				require.LessOrEqual(t, waited, patience)
				err := check("new")
				require.ErrorIs(t, err, ErrUnverified)
				require.NotErrorIs(t, err, ErrUnproven)
				time.Sleep(2 * time.Minute)
				require.Equal(t, ExpiredToken, reasonOf(check("a")))
				if name == "ends at all" {
					close(hang)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestOneQuestionForMany(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, _ func(string) error, tokens *Tokens) {
		hang := make(chan struct{})
		v.set(goodFor(time.Hour), hang)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				_, err := tokens.Check(t.Context(), netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), "same")
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		close(hang)
		all.Wait()
		require.EqualValues(t, 1, v.asked.Load())
	})
}

// A crowd that shows forged tokens is refused unseen after a while. Who is known does not notice, nor does a new caller from
// elsewhere.
func TestFailedAuthenticationsAreBounded(t *testing.T) {
	bubbled(t, FailureLimits{PerPeer: 10, Total: 1000}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
		require.NoError(t, check("friend"))
		v.set(func(raw string) (Token, error) {
			if strings.HasPrefix(raw, "friend") {
				return goodFor(time.Hour)(raw)
			}
			return refuse(raw)
		}, nil)
		asked := v.asked.Load()
		reasons := map[Reason]int{}
		for i := range 10_000 {
			reasons[reasonOf(check(fmt.Sprint("forged-", i)))]++
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, v.asked.Load()-asked, int64(125), "in 10 s")
		require.Equal(t, 10_000, reasons[BadToken]+reasons[FailsTooOften])
		require.NoError(t, check("friend"))
		for i := 0; reasonOf(check(fmt.Sprint("last-", i))) != FailsTooOften; i++ {
		}
		require.Equal(t, FailsTooOften, reasonOf(check("friend-2")), "from the same address")
		_, err := tokens.Check(t.Context(), netip.MustParseAddr("10.0.0.8"), "friend-2")
		require.NoError(t, err)
	})
}

// However many they are, they are remembered in bounded memory.
func TestPeersAreBounded(t *testing.T) {
	f := newFailures(FailureLimits{PerPeer: 1, Total: 0})
	for i := range 3 * maxPeers {
		f.failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	require.LessOrEqual(t, len(f.peers), maxPeers)
}

func TestHugeTokenIsNotLookedAt(t *testing.T) {
	bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, _ *Tokens) {
		require.Equal(t, BadToken, reasonOf(check(strings.Repeat("x", maxToken+1))))
		require.Zero(t, v.asked.Load())
	})
}

func FuzzLocal(f *testing.F) {
	s := newSigner(f, "k1")
	l := (&cluster{keys: []jose.JSONWebKey{s.public()}}).local()
	f.Add(s.sign(f, bound()))
	f.Fuzz(func(t *testing.T, raw string) {
		if _, err := l.Verify(t.Context(), raw); err != nil {
			require.ErrorIs(t, err, ErrUnproven, "the keys are known, so it is good or not")
		}
	})
}
