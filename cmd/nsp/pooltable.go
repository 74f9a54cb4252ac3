package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

func poolTable(b brush, pools []*targetpoolv1.PoolInfo, wide bool) *table {
	t := &table{}
	head := []string{"NAMESPACE", "NAME", "STREAM", b.heading("ACCEPTED"), "REASON", "MEMBERS", "READY", "ACTIVE"}
	if wide {
		head = append(head, "ASSIGNMENT", "DRAINING", "PANIC", "PROBLEMS", "MESSAGE")
	}
	t.add(head...)
	for _, p := range pools {
		row := []string{
			p.GetNamespace(), p.GetName(), streamName(p.GetStream(), p.GetNamespace()), b.good(p.GetAccepted()),
			orDash(p.GetReason()), strconv.Itoa(len(p.GetMembers())), strconv.Itoa(readyMembers(p)), strconv.Itoa(activeMembers(p)),
		}
		if wide {
			row = append(row, orDash(p.GetAssignment()), orDash(p.GetDraining()), panicCell(p),
				orDash(strings.Join(p.GetProblems(), "; ")), orDash(p.GetMessage()))
		}
		t.add(row...)
	}
	return t
}

func readyMembers(p *targetpoolv1.PoolInfo) (n int) {
	for _, m := range p.GetMembers() {
		n += one(!m.GetWithheld() && m.GetCondition() == "Ready")
	}
	return n
}

func activeMembers(p *targetpoolv1.PoolInfo) (n int) {
	for _, m := range p.GetMembers() {
		n += one(!m.GetWithheld() && m.GetState() == "ACTIVE")
	}
	return n
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// streamName leaves the namespace away where it is the one that is meant anyway.
func streamName(s *targetpoolv1.Stream, own string) string {
	if s.GetName() == "" {
		return "-"
	}
	name := strings.Join([]string{s.GetTrench(), s.GetConduit(), s.GetName()}, "/")
	if s.GetNamespace() != "" && s.GetNamespace() != own {
		name = s.GetNamespace() + "/" + name
	}
	return name
}

func panicCell(p *targetpoolv1.PoolInfo) string {
	switch {
	case p.GetPanic():
		return fmt.Sprintf("below %d%%", p.GetPanicThreshold())
	case p.GetPanicThreshold() == 0:
		return "off"
	default:
		return fmt.Sprintf("%d%%", p.GetPanicThreshold())
	}
}

// printRemarks prints what the NSP has to say of a pool.
func printRemarks(w io.Writer, p *targetpoolv1.PoolInfo) {
	if p.GetMessage() != "" || len(p.GetProblems()) > 0 {
		fmt.Fprintln(w)
	}
	if p.GetMessage() != "" {
		fmt.Fprintln(w, p.GetMessage())
	}
	for _, problem := range p.GetProblems() {
		fmt.Fprintln(w, problem)
	}
}

func memberTable(b brush, members []*targetpoolv1.MemberInfo, wide bool) *table {
	t := &table{}
	head := []string{"MEMBER", "ADDRESSES", "CONDITION", b.heading("STATE"), "ASSIGNED", "WATCHED", "WITHHELD"}
	if wide {
		head = append(head, "UID", "COMPONENT")
	}
	t.add(head...)
	for _, m := range members {
		row := []string{
			memberName(m), orDash(strings.Join(m.GetAddresses(), ",")), orDash(m.GetCondition()), b.state(orDash(m.GetState())),
			yesNo(m.GetAssigned()), yesNo(m.GetWatched()), yesNo(m.GetWithheld()),
		}
		if wide {
			row = append(row, orDash(m.GetUid()), orDash(componentNames(m.GetComponent())))
		}
		t.add(row...)
	}
	return t
}

func memberName(m *targetpoolv1.MemberInfo) string {
	if m.GetPod() == "" {
		return m.GetNamespace() + " (no pod)"
	}
	if m.GetExternalTarget() {
		return m.GetNamespace() + "/" + m.GetPod() + " (ExternalTarget)"
	}
	return m.GetNamespace() + "/" + m.GetPod()
}
