package auth

import "time"

// namesakes are the latest pods of each name that have proven themselves. A name is free for another pod only when the one before is
// deleted, so of two that have proven the same name, the one whose token was issued earlier is no more, though the API server may
// believe its tokens for some seconds still. It is not safe for concurrent use.
type namesakes map[podName]shown

type podName struct{ namespace, name string }

type shown struct {
	uid    string
	issued time.Time
}

// show takes in a good token and says which pod is over since; empty where none is known to be.
func (n namesakes) show(t Token) (over string) {
	name := podName{t.Pod.Namespace, t.Pod.Name}
	last, known := n[name]
	switch {
	case t.Pod.UID == "" || t.Pod.Name == "" || t.Issued.IsZero():
		return ""
	case !known || last.uid == t.Pod.UID && t.Issued.After(last.issued):
	case last.uid == t.Pod.UID || t.Issued.Equal(last.issued): // in whole seconds, so nobody can say
		return ""
	case t.Issued.Before(last.issued):
		return t.Pod.UID
	default:
		over = last.uid
	}
	n[name] = shown{t.Pod.UID, t.Issued}
	return over
}

// forget is told that no token of a pod is known any more.
func (n namesakes) forget(p Pod) {
	name := podName{p.Namespace, p.Name}
	if n[name].uid == p.UID {
		delete(n, name)
	}
}
