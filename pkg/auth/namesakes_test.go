package auth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The API server believes a pod's token for some seconds after its end. A pod that bears the name since need not wait for that.
func TestSuccessorOfTheSameName(t *testing.T) {
	for name, order := range map[string][]string{
		"the old one shows itself before": {"old", "new"}, "and after": {"new", "old"}, "both": {"old", "new", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
				d := &Departed{}
				tokens.cfg.Departed = d
				began := time.Now()
				v.set(func(raw string) (Token, error) {
					issued := began.Add(-time.Hour)
					if raw == "new" {
						issued = began
					}
					return Token{Pod: Pod{"red", "web-0", "uid-" + raw}, Issued: issued, Expires: began.Add(time.Hour)}, nil
				}, nil)
				require.NoError(t, check("old"))
				d.Listed("uid-old", false)
				tokens.Forget("uid-old")
				for _, raw := range order {
					require.NoError(t, check(raw))
				}
				require.True(t, d.Gone("uid-old"))
				time.Sleep(keepDeparted)
				require.NoError(t, tokens.Ended(t.Context(), peer, "uid-old", "old"), "the API server believes it still")
				require.True(t, d.Gone("uid-old"))
				require.False(t, d.Gone("uid-new"))
			})
		})
	}
}

// Of two pods of one name the one with the older token is over, in whatever order they come; nobody else is, and only living tokens
// are remembered.
func TestNamesakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, latest := namesakes{}, map[string]Token{}
		for range rapid.IntRange(1, 30).Draw(t, "tokens") {
			token := Token{
				Pod:    Pod{"red", rapid.SampledFrom([]string{"web-0", "web-1", ""}).Draw(t, "name"), rapid.SampledFrom([]string{"1", "2", "3", ""}).Draw(t, "uid")},
				Issued: time.Unix(int64(rapid.IntRange(1, 5).Draw(t, "issued")), 0),
			}
			var want string
			last, known := latest[token.Pod.Name]
			switch newer := token.Issued.Sub(last.Issued); {
			case token.Pod.Name == "" || token.Pod.UID == "":
			case !known || newer > 0:
				if known && last.Pod.UID != token.Pod.UID {
					want = last.Pod.UID
				}
				latest[token.Pod.Name] = token
			case newer < 0 && last.Pod.UID != token.Pod.UID:
				want = token.Pod.UID
			}
			if got := n.show(token); got != want {
				t.Fatalf("%v after %v: %q is over, want %q", token, last, got, want)
			}
		}
		for _, token := range latest {
			n.forget(token.Pod)
		}
		if len(n) > 0 {
			t.Fatalf("left: %v", n)
		}
	})
}
