package main

import (
	"path"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocators(t *testing.T) {
	set, err := parseLocator(webID)
	require.NoError(t, err)
	require.Equal(t, scaleSet{"0b1f6471-1bf0-4dda-aec3-cb9272f09590", "edge", "web"}, set)
	const below = "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/"
	for locator, says := range map[string]string{
		"":                           "is not the resource id of a scale set",
		"web":                        "az vmss show --query id",
		webID + "/virtualMachines/0": `leave "/virtualMachines/0" out`,
		below + "edge":               "is not the resource id",
		below + "../providers/Microsoft.Compute/virtualMachineScaleSets/web":   "is not the resource id",
		below + "edge/providers/Microsoft.Compute/virtualMachineScaleSets/..":  "is not the resource id",
		below + "edge/providers/Microsoft.Compute/virtualMachines/web":         "is not the resource id",
		below + "edge/providers/Microsoft.Compute/virtualMachineScaleSets/a?b": "is not the resource id",
	} {
		_, err := parseLocator(locator)
		require.ErrorContains(t, err, says, locator)
	}
}

func TestScopes(t *testing.T) {
	set, err := parseLocator(webID)
	require.NoError(t, err)
	for scope, want := range map[string]bool{
		"/subscriptions/0B1F6471-1bf0-4dda-aec3-cb9272f09590":                      true,
		"/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/EDGE/": true,
		"/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/ed":    false,
		"/subscriptions/0b1f6471": false, webID: true, webID + "2": false,
	} {
		require.Equal(t, want, set.within([]string{"/subscriptions/other", scope}), scope)
	}
	require.True(t, set.within(nil))
	require.False(t, set.within([]string{"/subscriptions/other"}))
}

func FuzzParseLocator(f *testing.F) {
	f.Add(webID)
	f.Add(webID + "/virtualMachines/0")
	f.Fuzz(func(t *testing.T, locator string) {
		set, err := parseLocator(locator)
		if err != nil {
			return
		}
		again, err := parseLocator(set.id())
		require.NoError(t, err)
		require.Equal(t, set.id(), again.id())
		require.Equal(t, set.id(), path.Clean(set.id()), "no part of it names another one")
	})
}
