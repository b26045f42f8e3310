//! Requests, decoded with bounds checks. The bytes are the kernel's, but nothing here depends on their being right: what
//! does not fit is a [`DecodeError`], never a panic.

use crate::abi::*;
use zerocopy::FromBytes;

/// A request that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than its parts.
    #[error("request of {have} bytes is cut off: {what} missing")]
    Short {
        /// Bytes there.
        have: usize,
        /// What is missing.
        what: &'static str,
    },
    /// The header's length is not the number of bytes received.
    #[error("request says {says} bytes, {have} came")]
    Length {
        /// By the header.
        says: u32,
        /// Received.
        have: usize,
    },
    /// Names end with NUL.
    #[error("name without an end")]
    Name,
}

/// Who asks, and which request it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Identity of the request in its session; the same if it is sent again.
    pub unique: u64,
    /// It has been sent before, and may have been done.
    pub resent: bool,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
    /// Supplementary groups that matter, with requests that create.
    pub groups: Vec<u32>,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Who.
    pub context: Context,
    /// About which object.
    pub node: u64,
    /// What.
    pub body: Body<'a>,
}

/// What is asked. Names are without their NUL and may be empty or too long: that is for the handler to say.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Body<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        forgets: Vec<ForgetOne>,
    },
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        new_parent: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Read(ReadIn),
    Write {
        args: WriteIn,
        bytes: &'a [u8],
    },
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr {
        flags: u32,
        /// Only if `SETXATTR_EXT` was agreed on.
        extra_flags: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush(FlushIn),
    Init(InitIn),
    Opendir(OpenIn),
    Readdir {
        args: ReadIn,
        plus: bool,
    },
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Access {
        mask: u32,
    },
    Create {
        args: CreateIn,
        name: &'a [u8],
    },
    Tmpfile {
        args: CreateIn,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl {
        args: IoctlIn,
        bytes: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    Syncfs,
    Statx(StatxIn),
    /// One this version does not know.
    Unknown {
        opcode: u32,
    },
}

/// The header alone, so that even a request that cannot be decoded can be answered.
pub fn header(bytes: &[u8]) -> Result<InHeader, DecodeError> {
    let (header, _) =
        InHeader::read_from_prefix(bytes).map_err(|_| DecodeError::Short { have: bytes.len(), what: "header" })?;
    if header.len as usize != bytes.len() {
        return Err(DecodeError::Length { says: header.len, have: bytes.len() });
    }
    Ok(header)
}

/// A whole request of a session in which these [`init_flags`] were agreed on.
pub fn request(bytes: &[u8], agreed: u64) -> Result<Request<'_>, DecodeError> {
    let header = header(bytes)?;
    let extensions = usize::from(header.total_extlen) * 8;
    let body = bytes.get(size_of::<InHeader>()..).unwrap_or_default();
    let split =
        body.len().checked_sub(extensions).ok_or(DecodeError::Short { have: bytes.len(), what: "extensions" })?;
    let (arguments, extensions) = body.split_at(split);
    let mut reader = Reader { bytes: arguments, whole: bytes.len(), agreed };
    let context = Context {
        unique: header.unique & !UNIQUE_RESEND,
        resent: header.unique & UNIQUE_RESEND != 0,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        groups: groups(extensions)?,
    };
    Ok(Request { context, node: header.nodeid, body: reader.body(header.opcode)? })
}

/// Supplementary groups among the extensions; other kinds are passed over.
fn groups(mut extensions: &[u8]) -> Result<Vec<u32>, DecodeError> {
    let short = DecodeError::Short { have: extensions.len(), what: "extension" };
    let mut groups = Vec::new();
    while !extensions.is_empty() {
        let (header, _) = ExtHeader::read_from_prefix(extensions).map_err(|_| short)?;
        let size = (header.size as usize).next_multiple_of(8);
        if size < size_of::<ExtHeader>() || size > extensions.len() {
            return Err(short);
        }
        let (extension, rest) = extensions.split_at(size);
        extensions = rest;
        if header.kind == EXT_GROUPS {
            let payload = &extension[size_of::<ExtHeader>()..];
            let (count, list) = u32::read_from_prefix(payload).map_err(|_| short)?;
            let list = list.get(..(count as usize).saturating_mul(4)).ok_or(short)?;
            groups
                .extend(list.chunks_exact(4).map(|group| u32::from_ne_bytes([group[0], group[1], group[2], group[3]])));
        }
    }
    Ok(groups)
}

struct Reader<'a> {
    bytes: &'a [u8],
    whole: usize,
    agreed: u64,
}

impl<'a> Reader<'a> {
    fn take<T: FromBytes>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        let (value, rest) =
            T::read_from_prefix(self.bytes).map_err(|_| DecodeError::Short { have: self.whole, what })?;
        self.bytes = rest;
        Ok(value)
    }

    fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self.bytes.iter().position(|&byte| byte == 0).ok_or(DecodeError::Name)?;
        let name = &self.bytes[..end];
        self.bytes = &self.bytes[end + 1..];
        Ok(name)
    }

    fn exactly(&mut self, length: u32, what: &'static str) -> Result<&'a [u8], DecodeError> {
        self.bytes.get(..length as usize).ok_or(DecodeError::Short { have: self.whole, what })
    }

    fn body(&mut self, opcode: u32) -> Result<Body<'a>, DecodeError> {
        Ok(match opcode {
            opcode::LOOKUP => Body::Lookup { name: self.name()? },
            opcode::FORGET => Body::Forget { count: self.take::<ForgetIn>("forget")?.nlookup },
            opcode::BATCH_FORGET => {
                let count = self.take::<BatchForgetIn>("batch forget")?.count as usize;
                // Not more than the bytes can hold, whatever the count says.
                if self.bytes.len() / size_of::<ForgetOne>() < count {
                    return Err(DecodeError::Short { have: self.whole, what: "forgets" });
                }
                let forgets = (0..count).map(|_| self.take("forget")).collect::<Result<_, _>>()?;
                Body::BatchForget { forgets }
            }
            opcode::GETATTR => Body::Getattr(self.take("getattr")?),
            opcode::SETATTR => Body::Setattr(self.take("setattr")?),
            opcode::READLINK => Body::Readlink,
            opcode::SYMLINK => Body::Symlink { name: self.name()?, target: self.name()? },
            opcode::MKNOD => Body::Mknod { args: self.take("mknod")?, name: self.name()? },
            opcode::MKDIR => Body::Mkdir { args: self.take("mkdir")?, name: self.name()? },
            opcode::UNLINK => Body::Unlink { name: self.name()? },
            opcode::RMDIR => Body::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let new_parent = self.take::<RenameIn>("rename")?.newdir;
                Body::Rename { new_parent, flags: 0, name: self.name()?, new_name: self.name()? }
            }
            opcode::RENAME2 => {
                let Rename2In { newdir: new_parent, flags, .. } = self.take("rename")?;
                Body::Rename { new_parent, flags, name: self.name()?, new_name: self.name()? }
            }
            opcode::LINK => Body::Link { node: self.take::<LinkIn>("link")?.oldnodeid, name: self.name()? },
            opcode::OPEN => Body::Open(self.take("open")?),
            opcode::READ => Body::Read(self.take("read")?),
            opcode::WRITE => {
                let args: WriteIn = self.take("write")?;
                Body::Write { args, bytes: self.exactly(args.size, "bytes to write")? }
            }
            opcode::STATFS => Body::Statfs,
            opcode::RELEASE => Body::Release(self.take("release")?),
            opcode::FSYNC => Body::Fsync(self.take("fsync")?),
            opcode::SETXATTR => {
                let (size, flags, extra_flags) = if self.agreed & init_flags::SETXATTR_EXT != 0 {
                    let args: SetxattrIn = self.take("setxattr")?;
                    (args.size, args.flags, args.setxattr_flags)
                } else {
                    let args: SetxattrCompatIn = self.take("setxattr")?;
                    (args.size, args.flags, 0)
                };
                let name = self.name()?;
                Body::Setxattr { flags, extra_flags, name, value: self.exactly(size, "value")? }
            }
            opcode::GETXATTR => {
                let GetxattrIn { size, .. } = self.take("getxattr")?;
                Body::Getxattr { size, name: self.name()? }
            }
            opcode::LISTXATTR => Body::Listxattr { size: self.take::<GetxattrIn>("listxattr")?.size },
            opcode::REMOVEXATTR => Body::Removexattr { name: self.name()? },
            opcode::FLUSH => Body::Flush(self.take("flush")?),
            opcode::INIT => Body::Init(self.init()?),
            opcode::OPENDIR => Body::Opendir(self.take("opendir")?),
            opcode::READDIR => Body::Readdir { args: self.take("readdir")?, plus: false },
            opcode::READDIRPLUS => Body::Readdir { args: self.take("readdir")?, plus: true },
            opcode::RELEASEDIR => Body::Releasedir(self.take("releasedir")?),
            opcode::FSYNCDIR => Body::Fsyncdir(self.take("fsyncdir")?),
            opcode::ACCESS => Body::Access { mask: self.take::<AccessIn>("access")?.mask },
            opcode::CREATE => Body::Create { args: self.take("create")?, name: self.name()? },
            opcode::TMPFILE => Body::Tmpfile { args: self.take("tmpfile")? },
            opcode::INTERRUPT => Body::Interrupt { unique: self.take::<InterruptIn>("interrupt")?.unique },
            opcode::DESTROY => Body::Destroy,
            opcode::IOCTL => {
                let args: IoctlIn = self.take("ioctl")?;
                Body::Ioctl { args, bytes: self.exactly(args.in_size, "ioctl argument")? }
            }
            opcode::FALLOCATE => Body::Fallocate(self.take("fallocate")?),
            opcode::LSEEK => Body::Lseek(self.take("lseek")?),
            opcode::COPY_FILE_RANGE => Body::CopyFileRange(self.take("copy_file_range")?),
            opcode::SYNCFS => Body::Syncfs,
            opcode::STATX => Body::Statx(self.take("statx")?),
            opcode => Body::Unknown { opcode },
        })
    }

    /// Kernels before 7.36 send the first 16 bytes only.
    fn init(&mut self) -> Result<InitIn, DecodeError> {
        if self.bytes.len() >= size_of::<InitIn>() {
            return self.take("init");
        }
        let [major, minor, max_readahead, flags] = self.take::<[u32; 4]>("init")?;
        Ok(InitIn { major, minor, max_readahead, flags, ..InitIn::default() })
    }
}

#[cfg(test)]
mod tests;
