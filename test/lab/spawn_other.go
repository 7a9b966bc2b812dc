//go:build !unix

package lab

import "syscall"

func ownSession() *syscall.SysProcAttr { return nil }
