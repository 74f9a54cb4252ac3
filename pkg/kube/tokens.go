package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// What Kubernetes says of the user of a token that is bound to a pod.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	accountUser  = "system:serviceaccount:"
)

// Reviews has the API server verify tokens, which also tells that a pod is gone. It implements auth.Verifier and needs the
// cluster-wide permission to create tokenreviews.
type Reviews struct {
	Client   kubernetes.Interface
	Audience string
}

// Verify implements auth.Verifier.
func (r Reviews) Verify(ctx context.Context, raw string) (auth.Token, error) {
	token, err := outline(raw, r.Audience)
	if err != nil {
		return auth.Token{}, err
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: raw, Audiences: []string{r.Audience}}}
	review, err = r.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return auth.Token{}, fmt.Errorf("asking for a token review: %w", err)
	}
	st := review.Status
	switch {
	case st.Error != "" && !st.Authenticated:
		return auth.Token{}, auth.Unproven(auth.BadToken, "the API server says of the token: %s", st.Error)
	case !st.Authenticated:
		return auth.Token{}, auth.Unproven(auth.BadToken, "the API server does not know the token")
	case !slices.Contains(st.Audiences, r.Audience):
		return auth.Token{}, auth.Unproven(auth.WrongAudience, "the token is for %q, not for %q", st.Audiences, r.Audience)
	}
	namespace, name, ok := strings.Cut(strings.TrimPrefix(st.User.Username, accountUser), ":")
	if !ok || !strings.HasPrefix(st.User.Username, accountUser) {
		return auth.Token{}, auth.Unproven(auth.BadToken, "the token is of %q, which is no ServiceAccount", st.User.Username)
	}
	token.Account = auth.ServiceAccount{Namespace: namespace, Name: name}
	if pod, uid := one(st.User.Extra[extraPodName]), one(st.User.Extra[extraPodUID]); pod != "" && uid != "" {
		token.Pod = auth.Pod{Namespace: namespace, Name: pod, UID: uid}
	}
	return token, nil
}

func one(v authenticationv1.ExtraValue) string {
	if len(v) != 1 {
		return ""
	}
	return v[0]
}

// outline reads the times of a token, which a review does not tell, and refuses what need not be asked about. What it reads
// counts only if the review finds the token good.
func outline(raw, audience string) (auth.Token, error) {
	parsed, err := jwt.ParseSigned(raw, auth.Algorithms)
	if err != nil {
		return auth.Token{}, auth.Unproven(auth.BadToken, "the token is no signed JWT: %v", err)
	}
	var c jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&c); err != nil {
		return auth.Token{}, auth.Unproven(auth.BadToken, "the token has no claims: %v", err)
	}
	switch {
	case c.Expiry == nil:
		return auth.Token{}, auth.Unproven(auth.BadToken, "the token never expires")
	case !time.Now().Before(c.Expiry.Time()):
		return auth.Token{}, auth.Unproven(auth.ExpiredToken, "the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	case !slices.Contains(c.Audience, audience):
		return auth.Token{}, auth.Unproven(auth.WrongAudience, "the token is for %q, not for %q", []string(c.Audience), audience)
	}
	t := auth.Token{Expires: c.Expiry.Time()}
	if c.IssuedAt != nil {
		t.Issued = c.IssuedAt.Time()
	}
	return t, nil
}

// Keys reads the keys that the cluster signs tokens with. Every ServiceAccount may do that, unless somebody has unbound the
// ClusterRole system:service-account-issuer-discovery. It can be auth.LocalConfig.Fetch.
func Keys(client kubernetes.Interface) func(context.Context) (auth.Keys, error) {
	return func(ctx context.Context) (keys auth.Keys, err error) {
		var discovered struct {
			Issuer string `json:"issuer"`
		}
		if err := getJSON(ctx, client, "/.well-known/openid-configuration", &discovered); err != nil {
			return auth.Keys{}, err
		}
		if discovered.Issuer == "" {
			return auth.Keys{}, errors.New("the API server does not name the issuer of tokens")
		}
		keys.Issuer = discovered.Issuer
		return keys, getJSON(ctx, client, "/openid/v1/jwks", &keys.Set)
	}
}

func getJSON(ctx context.Context, client kubernetes.Interface, path string, into any) error {
	// The answers are JSON whatever else the client speaks.
	data, err := client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "*/*").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("reading %s of the API server: %w", path, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading %s of the API server: %w", path, err)
	}
	return nil
}

// Lives tells whether a pod is there. It needs the permission to get pods in the pod's namespace. It can be
// auth.LocalConfig.Lives.
func Lives(client kubernetes.Interface) func(context.Context, auth.Pod) (bool, error) {
	return func(ctx context.Context, p auth.Pod) (bool, error) {
		pod, err := client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("looking for pod %s: %w", p, err)
		}
		return string(pod.UID) == p.UID, nil
	}
}
