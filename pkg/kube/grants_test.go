package kube

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func TestGrantsOfObjects(t *testing.T) {
	grant := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"from": []any{map[string]any{"namespace": "app", "serviceAccounts": []any{"web"}}, map[string]any{"namespace": "db"}},
		"to":   []any{map[string]any{"trench": "t", "conduit": "c", "stream": "s"}, map[string]any{"trench": "u"}},
	}}}
	all, err := grantsOf(grant)
	require.NoError(t, err)
	require.ElementsMatch(t, []pool.Grant{
		{Namespace: "app", Accounts: []string{"web"}, Trench: "t", Conduit: "c", Stream: "s"},
		{Namespace: "app", Accounts: []string{"web"}, Trench: "u"},
		{Namespace: "db", Trench: "t", Conduit: "c", Stream: "s"}, {Namespace: "db", Trench: "u"},
	}, all)

	trench := &unstructured.Unstructured{}
	trench.SetName("t")
	all, err = annotated(trench)
	require.NoError(t, err)
	require.Empty(t, all)
	trench.SetAnnotations(map[string]string{AnnotationTargetNamespaces: "app, db ,,"})
	all, err = annotated(trench)
	require.NoError(t, err)
	require.Equal(t, []pool.Grant{{Namespace: "app", Trench: "t"}, {Namespace: "db", Trench: "t"}}, all)
	trench.SetAnnotations(map[string]string{AnnotationTargetNamespaces: "*"})
	_, err = annotated(trench)
	require.Error(t, err)
}

// What was stored counts until both kinds were read, and once they were, unchanged grants are told once.
func TestGrantsAreToldOnce(t *testing.T) {
	posted, saved := &sink{}, &documents{}
	var namespaces []string
	stored := []byte(`[{"Namespace":"old","Trench":"t"}]`)
	g := NewGrants(GrantsConfig{Sink: posted, Save: saved.save, Stored: stored, Changed: func(ns []string) { namespaces = ns }})
	g.failed("targetgrants", errors.New("away"))
	g.failed("trenches", errors.New("away"))
	require.Equal(t, []string{"old"}, as[engine.GrantsChanged](t, posted.take(t, 1)[0]).Grants.Namespaces())

	g.set("trenches", nil)
	for range 3 {
		g.set("targetgrants", map[string][]pool.Grant{"a": {{Namespace: "app", Trench: "t"}}})
	}
	require.Equal(t, []string{"app"}, as[engine.GrantsChanged](t, posted.take(t, 1)[0]).Grants.Namespaces())
	require.Equal(t, []string{"app"}, namespaces)
	require.Equal(t, []string{"app"}, StoredGrants([]byte(saved.all()[GrantsDocument])).Namespaces())
	g.failed("targetgrants", errors.New("away"))
	g.set("targetgrants", map[string][]pool.Grant{})
	require.Empty(t, as[engine.GrantsChanged](t, posted.take(t, 1)[0]).Grants.Namespaces())
	require.Nil(t, StoredGrants([]byte("damaged")).Namespaces())
}
