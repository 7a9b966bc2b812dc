package proc

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// job is a Windows job object that holds a program and what it starts. Its last handle is this process's: when it is
// closed, by us or by the end of this process, the system ends everything in it.
type job windows.Handle

// newJob makes a job of a running process. What the process started before it was put into the job is not in it: some
// microseconds, in which programs load their libraries.
func newJob(p *os.Process) (job, error) {
	handle, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("make a job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(handle, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err == nil {
		var process windows.Handle
		if process, err = windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(p.Pid)); err == nil {
			err = windows.AssignProcessToJobObject(handle, process)
			_ = windows.CloseHandle(process)
		}
	}
	if err != nil {
		_ = windows.CloseHandle(handle)
		return 0, fmt.Errorf("put process %d into a job object: %w", p.Pid, err)
	}
	return job(handle), nil
}

// end ends everything in the job.
func (j job) end() { _ = windows.TerminateJobObject(windows.Handle(j), 1) }

// close ends what is left in the job, and gives it up.
func (j job) close() { _ = windows.CloseHandle(windows.Handle(j)) }
