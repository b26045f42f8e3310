//! Integration tests of `holdfast-guard`, in one binary. Protection is for a whole process and for good, and faults end it: each case
//! runs in a child, which is this binary again.

mod child;
mod faults;
mod threads;
mod windows;
