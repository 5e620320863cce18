//! The number of data segments that a socket has received and sent, from `TCP_INFO`: the only call of this crate
//! without a safe wrapper.

#![allow(unsafe_code)]

use mio::net::TcpStream;

/// Segments since the connection began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segments {
    pub received: u32,
    pub sent: u32,
}

/// Reads the counters of a socket; zeros if the kernel does not report them.
#[cfg(target_os = "linux")]
pub fn segments(stream: &TcpStream) -> Segments {
    use std::os::fd::AsRawFd;
    // include/uapi/linux/tcp.h, `struct tcp_info`: `tcpi_data_segs_in` is at byte 152, followed by
    // `tcpi_data_segs_out`. The struct in the libc crate ends before them.
    const WORDS: usize = 64;
    const DATA_SEGMENTS_IN: usize = 152 / 4;
    let mut info = [0u32; WORDS];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open while `stream` lives; the kernel writes at most `length` bytes, which is the size
    // of `info`, and any bits are a valid array of u32.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length as usize >= 4 * (DATA_SEGMENTS_IN + 2) => Segments {
            received: info[DATA_SEGMENTS_IN],
            sent: info[DATA_SEGMENTS_IN + 1],
        },
        _ => Segments::default(),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn segments(_stream: &TcpStream) -> Segments {
    Segments::default()
}
