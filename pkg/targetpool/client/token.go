package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// TokenFile are per-call credentials from a file with a bearer token, as the kubelet projects one for a ServiceAccount. The
// file is read at every call, so that a token the kubelet has replaced counts at once, however it was replaced. It can be
// shared by any number of clients and connections.
type TokenFile struct {
	path     string
	insecure bool

	mu   sync.Mutex
	last token
}

// token is one token and what it says of its times, which are zero where it does not say.
type token struct {
	raw             string
	issued, expires time.Time
}

// errNoToken is wrapped where there is no token to show.
var errNoToken = errors.New("no token")

// NewTokenFile names the file. It does not read it: the kubelet may still be about to write it. Over plaintext, where
// anybody on the way can take the token and use it, a call fails unless overPlaintext is set.
func NewTokenFile(path string, overPlaintext bool) *TokenFile {
	return &TokenFile{path: path, insecure: overPlaintext}
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f *TokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	t, err := f.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + t.raw}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (f *TokenFile) RequireTransportSecurity() bool { return !f.insecure }

// Reopen implements Expiring. The kubelet replaces a token when four fifths of its life are over; a tenth before its end the
// file has another one. Where it has not, there is hope until the end.
func (f *TokenFile) Reopen() time.Duration {
	t, err := f.read()
	if err != nil || t.expires.IsZero() {
		return 0
	}
	left := time.Until(t.expires)
	margin := t.expires.Sub(t.issued) / 10
	if t.issued.IsZero() || left <= margin {
		return max(left/2, time.Second)
	}
	// Streams of one token, opened together, shall not be opened again together.
	return max(left-margin-jitter(margin/2), time.Second)
}

// read reads the file. While it cannot be read, the last token counts until it expires.
func (f *TokenFile) read() (token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := os.ReadFile(f.path)
	raw := strings.TrimSpace(string(data))
	switch {
	case err == nil && raw == f.last.raw && raw != "":
	case err == nil && raw != "":
		f.last = parseToken(raw)
	case f.last.raw != "" && time.Now().Before(f.last.expires):
	case err != nil:
		return token{}, fmt.Errorf("%w: reading its file: %w", errNoToken, err)
	default:
		return token{}, fmt.Errorf("%w: the file %s is empty", errNoToken, f.path)
	}
	return f.last, nil
}

// parseToken reads the times of a JWT. It checks nothing: that is the server's part. Another kind of token has no times.
func parseToken(raw string) token {
	t := token{raw: raw}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return t
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return t
	}
	var claims struct {
		Issued  float64 `json:"iat"`
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return t
	}
	t.issued, t.expires = numericDate(claims.Issued), numericDate(claims.Expires)
	return t
}

// numericDate reads a time as RFC 7519 writes it.
func numericDate(seconds float64) time.Time {
	if seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}
