//! How many data segments a socket has received and sent, which only `TCP_INFO` tells; the one call here that no safe wrapper has.

#![allow(unsafe_code)]

use mio::net::TcpStream;

/// Since the connection began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segments {
    pub received: u32,
    pub sent: u32,
}

/// Zeros where the kernel does not say.
#[cfg(target_os = "linux")]
pub fn segments(stream: &TcpStream) -> Segments {
    use std::os::fd::AsRawFd;
    // include/uapi/linux/tcp.h, `struct tcp_info`: `tcpi_data_segs_in` is 152 bytes from the beginning, `tcpi_data_segs_out` follows;
    // libc's copy ends before.
    const WORDS: usize = 64;
    const DATA_SEGMENTS_IN: usize = 152 / 4;
    let mut info = [0u32; WORDS];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open while `stream` lives; the kernel writes at most `length` bytes, which is the size of `info`, and
    // any bits are a valid array of u32.
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
