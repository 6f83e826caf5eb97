//! Ports from sysfs.
