package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Keys are what an issuer of tokens publishes.
type Keys struct {
	Issuer string             `json:"issuer"`
	Set    jose.JSONWebKeySet `json:"set"`
}

// LocalConfig says where keys come from.
type LocalConfig struct {
	Audience string
	// Fetch asks the issuer for its keys.
	Fetch func(context.Context) (Keys, error)
	// First are keys of an earlier run, so that a start needs no issuer; Save keeps them for the next one. Both are optional.
	First *Keys
	Save  func(Keys)
	// Lives tells whether a pod that has Departed is still there. Both are optional: without them such a pod is believed while
	// its token lasts.
	Lives    func(context.Context, Pod) (bool, error)
	Departed *Departed
	Log      *slog.Logger
}

const (
	// refreshEvery is how old keys may get, refreshAtMost how often they are asked for.
	refreshEvery, refreshAtMost = 10 * time.Minute, 10 * time.Second
	// skew is how far ahead the clock of the issuer may be.
	skew = 10 * time.Second
)

// Algorithms are those that Kubernetes signs tokens with.
var Algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// Local verifies tokens against the public keys of the cluster, without asking anybody. It implements Verifier. A deleted pod
// shows only in that it leaves its slices.
type Local struct {
	cfg LocalConfig

	mu      sync.Mutex
	keys    *Keys
	fetched time.Time // of a good answer
	asked   time.Time
	// fetching makes sure that one asks at a time.
	fetching sync.Mutex
}

// NewLocal makes one; keys are fetched when they are needed.
func NewLocal(cfg LocalConfig) *Local {
	return &Local{cfg: cfg, keys: cfg.First}
}

// claims are those of a ServiceAccount's token.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Account   named  `json:"serviceaccount"`
		Pod       named  `json:"pod"`
	} `json:"kubernetes.io"`
}

type named struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Verify implements Verifier.
func (l *Local) Verify(ctx context.Context, raw string) (Token, error) {
	parsed, err := jwt.ParseSigned(raw, Algorithms)
	if err != nil {
		return Token{}, Unproven(BadToken, "the token is no signed JWT: %v", err)
	}
	keys, found, err := l.keysFor(ctx, parsed.Headers[0].KeyID)
	if err != nil {
		return Token{}, err
	}
	if len(found) == 0 {
		return Token{}, Unproven(BadToken, "the token is signed by a key that the cluster does not have")
	}
	var c claims
	if err := parsed.Claims(found[0].Key, &c); err != nil {
		return Token{}, Unproven(BadToken, "the token is not what the cluster signed: %v", err)
	}
	token, err := c.token(keys.Issuer, l.cfg.Audience)
	if err != nil {
		return Token{}, err
	}
	return token, l.lives(ctx, token.Pod)
}

// token checks the claims of a token whose signature is good.
func (c *claims) token(issuer, audience string) (Token, error) {
	account := ServiceAccount{Namespace: c.Kubernetes.Namespace, Name: c.Kubernetes.Account.Name}
	now := time.Now()
	switch {
	case c.Issuer != issuer:
		return Token{}, Unproven(BadToken, "the token is of issuer %q", c.Issuer)
	case !slices.Contains(c.Audience, audience):
		return Token{}, Unproven(WrongAudience, "the token is for %q, not for %q", []string(c.Audience), audience)
	case c.Expiry == nil:
		return Token{}, Unproven(BadToken, "the token never expires")
	case !now.Before(c.Expiry.Time()):
		return Token{}, Unproven(ExpiredToken, "the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	case c.NotBefore != nil && now.Add(skew).Before(c.NotBefore.Time()):
		return Token{}, Unproven(BadToken, "the token is not valid before %s", c.NotBefore.Time().UTC().Format(time.RFC3339))
	case account.Namespace == "" || account.Name == "" || c.Subject != "system:serviceaccount:"+account.Namespace+":"+account.Name:
		return Token{}, Unproven(BadToken, "the token is of %q, which is no ServiceAccount", c.Subject)
	}
	t := Token{Account: account, Expires: c.Expiry.Time()}
	if c.IssuedAt != nil {
		t.Issued = c.IssuedAt.Time()
	}
	if pod := c.Kubernetes.Pod; pod.Name != "" && pod.UID != "" {
		t.Pod = Pod{Namespace: account.Namespace, Name: pod.Name, UID: pod.UID}
	}
	return t, nil
}

// lives asks about a pod that has left its slices, which may be its end.
func (l *Local) lives(ctx context.Context, p Pod) error {
	if l.cfg.Lives == nil || l.cfg.Departed == nil || !l.cfg.Departed.Has(p.UID) {
		return nil
	}
	there, err := l.cfg.Lives(ctx, p)
	switch {
	case err != nil:
		l.cfg.Log.WarnContext(ctx, "whether a pod is still there cannot be found out; its token counts until it expires",
			"pod", p.String(), "error", err)
	case !there:
		return Unproven(BadToken, "pod %s (%s) is gone", p, p.UID)
	}
	return nil
}

// keysFor returns the keys, and those among them of the given ID. They are fetched where that is not among them, or they are old.
func (l *Local) keysFor(ctx context.Context, id string) (*Keys, []jose.JSONWebKey, error) {
	keys, stale := l.current()
	found := keys.find(id)
	if len(found) > 0 && !stale {
		return keys, found, nil
	}
	err := l.refresh(ctx)
	keys, _ = l.current()
	if keys == nil {
		return nil, nil, fmt.Errorf("the cluster's keys are not known: %w", err)
	}
	return keys, keys.find(id), nil
}

func (k *Keys) find(id string) []jose.JSONWebKey {
	if k == nil || id == "" {
		return nil
	}
	return k.Set.Key(id)
}

func (l *Local) current() (keys *Keys, stale bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keys, time.Since(l.fetched) >= refreshEvery && time.Since(l.asked) >= refreshAtMost
}

var errAskedLately = errors.New("they were asked for a moment ago")

// refresh fetches keys, unless that was tried a moment ago: anybody can name keys that do not exist.
func (l *Local) refresh(ctx context.Context) error {
	l.fetching.Lock()
	defer l.fetching.Unlock()
	l.mu.Lock()
	again := time.Since(l.asked) < refreshAtMost
	if !again {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if again {
		return errAskedLately
	}
	keys, err := l.cfg.Fetch(ctx)
	if err == nil && (keys.Issuer == "" || len(keys.Set.Keys) == 0) {
		err = errors.New("the cluster publishes none")
	}
	if err != nil {
		l.cfg.Log.WarnContext(ctx, "the cluster's keys cannot be read; the last ones count", "error", err)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.fetched = &keys, time.Now()
	if l.cfg.Save != nil {
		l.cfg.Save(keys)
	}
	return nil
}
