package kube

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// Every reason that the code names stands in the table, once, and says what it means.
func TestReasonsAreComplete(t *testing.T) {
	listed := map[string]bool{}
	for _, r := range Reasons {
		require.False(t, listed[r.Name], "%s twice", r.Name)
		require.NotEmpty(t, r.Means, r.Name)
		require.True(t, r.Status == "True" || r.Do != "" || r.Of == Event, "%s says nothing of what to do", r.Name)
		listed[r.Name] = true
	}
	for _, file := range []string{"conditions.go", "reasons.go", "../pool/model.go"} {
		for _, name := range reasonsIn(t, file) {
			require.True(t, listed[name], "%s of %s", name, file)
		}
	}
}

// reasonsIn are the values of the constants that are called Reason something; those of answers are in a block of their own.
func reasonsIn(t *testing.T, file string) (names []string) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	for _, d := range f.Decls {
		consts, ok := d.(*ast.GenDecl)
		if !ok || consts.Tok != token.CONST || strings.Contains(consts.Doc.Text(), "of an Answer") {
			continue
		}
		for _, s := range consts.Specs {
			v := s.(*ast.ValueSpec)
			if strings.HasPrefix(v.Names[0].Name, "Reason") {
				name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				names = append(names, name)
			}
		}
	}
	require.NotEmpty(t, names)
	return names
}

// What the configuration says of the stream is told where the pool itself is well.
func TestConfigurationOfTheStream(t *testing.T) {
	p := accepted(pool.Counts{})
	s := &engine.PoolStatus{Pool: p, Unmet: []string{"TCP 80"}}
	c := conditionsOf(s)[0]
	require.Equal(t, []string{"True", ReasonPortsNotServed, "fine; no flow of the stream is for TCP 80; correct the ports of the Service or the flows"},
		[]string{string(c.Status), c.Reason, c.Message})
	s.Unconfigured = true
	require.Equal(t, ReasonStreamNotFound, conditionsOf(s)[0].Reason)
	p.Reason = pool.ReasonConflict
	require.Equal(t, pool.ReasonConflict, conditionsOf(s)[0].Reason, "that disturbs members")
}
