package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errFlexible = errors.New("the scale set has flexible orchestration, which is not supported: " +
	"its instances are virtual machines of their own; use one with uniform orchestration, or list the addresses in spec.source.addresses")

// tokenError is that no token for Azure could be had.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "asking for a token: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

// tokens marks the errors of a credential, whose many kinds have no type in common.
type tokens struct{ azcore.TokenCredential }

func (t tokens) GetToken(ctx context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := t.TokenCredential.GetToken(ctx, options)
	if err != nil {
		err = &tokenError{err}
	}
	return token, err
}

// fault names what went wrong as resolver.v1 does, and what to do about it.
func fault(set scaleSet, err error) error {
	if errors.Is(err, errFlexible) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Errorf(codes.Unavailable, "Azure does not answer: %v", err)
	}
	// A network that is away is none of the credentials' faults, even where it was a token that could not be asked for.
	if network, ok := errors.AsType[*url.Error](err); ok {
		return status.Errorf(codes.Unavailable, "Azure does not answer: %v", network.Err)
	}
	if token, ok := errors.AsType[*tokenError](err); ok {
		return status.Errorf(codes.PermissionDenied, "Azure gives no token for the credentials of the provider; "+
			"check its AZURE_TENANT_ID, AZURE_CLIENT_ID and secret, or its managed identity: %v", token.err)
	}
	response, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return status.Errorf(codes.Unavailable, "reading scale set %s: %v", set.name, err)
	}
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return status.Errorf(codes.PermissionDenied, "Azure refuses the credentials of the provider (401 %s); "+
			"check its tenant and --cloud", response.ErrorCode)
	case http.StatusForbidden:
		return status.Errorf(codes.PermissionDenied, "the credentials of the provider may not read scale set %s of resource group %s (403 %s); "+
			"grant them the role Reader on it", set.name, set.group, response.ErrorCode)
	case http.StatusNotFound:
		return status.Errorf(codes.NotFound, "there is no scale set %s in resource group %s of subscription %s (404 %s)",
			set.name, set.group, set.subscription, response.ErrorCode)
	case http.StatusTooManyRequests:
		return status.Errorf(codes.ResourceExhausted, "Azure throttles requests (429 %s), which a longer --interval makes rarer", response.ErrorCode)
	}
	return status.Errorf(codes.Unavailable, "Azure answers %d %s", response.StatusCode, response.ErrorCode)
}

// retryAfter is how long Azure asks to be left alone, 0 if it does not.
func retryAfter(err error, now time.Time) time.Duration {
	response, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok || response.RawResponse == nil {
		return 0
	}
	// RFC 9110, section 10.2.3: seconds or a date.
	text := response.RawResponse.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}
