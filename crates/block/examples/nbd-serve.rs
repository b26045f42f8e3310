//! Serves a file, a disk or memory to NBD clients until SIGTERM, SIGINT or SIGHUP: what the suites hold real clients against.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use holdfast_block::flashlog::{Create, Flashlog, Lasting, Mode, Options, Policy, Uuid, create};
use holdfast_block::nbd::{Export, Extents, Limits, Listener, Server, Stop, Tls};
use holdfast_block::{Access, Device, FileDevice, MemoryDevice};

/// Serves a file, a disk or memory to NBD clients.
#[derive(Parser)]
struct Arguments {
    /// The file or disk. It is taken for exclusive use.
    #[arg(required_unless_present = "memory")]
    path: Option<PathBuf>,
    /// Memory of so many MiB instead.
    #[arg(long, conflicts_with = "path")]
    memory: Option<u64>,
    /// A file or disk for the log of a Flashlog, whose main device the path is. A new set is made of them: what the log has is lost, and main's last MiB.
    #[arg(long, requires = "path")]
    log: Option<PathBuf>,
    /// With --log, in asynchronous mode.
    #[arg(long, requires = "log")]
    asynchronous: bool,
    /// A unix socket to listen on, for its owner only. Without this and --listen, those of the service manager.
    #[arg(long)]
    socket: Vec<PathBuf>,
    /// An address to listen on: HOST:PORT, or HOST.
    #[arg(long)]
    listen: Vec<String>,
    /// The name of the export, besides none.
    #[arg(long, default_value = "")]
    name: String,
    /// For reading only.
    #[arg(long)]
    read_only: bool,
    /// Through the page cache.
    #[arg(long)]
    buffered: bool,
    /// A directory with server-cert.pem and server-key.pem: nobody gets anything without TLS.
    #[arg(long)]
    tls_certificates: Option<PathBuf>,
    /// Clients must have a certificate of ca-cert.pem in that directory.
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,
    /// Connections at a time.
    #[arg(long, default_value_t = Limits::default().connections)]
    connections: usize,
    /// Seconds that a client has to choose an export.
    #[arg(long, default_value_t = 30)]
    negotiation_s: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nbd-serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    // Before anything else opens files.
    let mut listeners = Listener::inherited()?;
    block_signals()?;
    let access = if arguments.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let open = if arguments.buffered { FileDevice::open_buffered } else { FileDevice::open };
    let mut set = None;
    let mut export = match (&arguments.path, arguments.memory) {
        (Some(path), _) => {
            let main = Arc::new(open(path, access)?);
            match &arguments.log {
                Some(log) => {
                    let log = Arc::new(open(log, Access::ReadWrite)?);
                    let lasting = set.insert(flashlog(arguments, main, log)?);
                    exported(arguments, lasting.clone())
                }
                None => exported(arguments, main),
            }
        }
        (None, mib) => exported(arguments, Arc::new(MemoryDevice::new(mib.unwrap_or(0) << 8))),
    };
    if arguments.read_only {
        export = export.read_only();
    }
    let limits = Limits {
        connections: arguments.connections,
        negotiation: Duration::from_secs(arguments.negotiation_s),
        ..Limits::default()
    };
    let mut server = Server::new(vec![export]).limited(limits);
    if let Some(directory) = &arguments.tls_certificates {
        server = server.with_tls(Tls::from_directory(directory, arguments.tls_verify_peer)?);
    }
    for path in &arguments.socket {
        listeners.push(Listener::unix(path, 0o600)?);
    }
    for address in &arguments.listen {
        listeners.extend(Listener::tcp(address)?);
    }
    if listeners.is_empty() {
        return Err("nowhere to listen: --socket, --listen, or a service manager".into());
    }
    for listener in &listeners {
        println!("listening on {}", listener.name());
    }
    let stop = Stop::new()?;
    let on_signal = stop.clone();
    std::thread::spawn(move || {
        wait_for_signal();
        on_signal.stop();
    });
    let (at_main, at_log, reads) = (set.clone(), set.clone(), set.clone());
    let catching_up = std::thread::spawn(move || at_main.iter().for_each(|set| set.serve_main()));
    let logging = std::thread::spawn(move || at_log.iter().for_each(|set| set.serve_log()));
    let reading = std::thread::spawn(move || reads.iter().for_each(|set| set.serve_reads()));
    let served = server.run(&listeners, &stop);
    set.iter().for_each(|set| set.end_main());
    catching_up.join().map_err(|_panic| "catching up has panicked")?;
    logging.join().map_err(|_panic| "writing to the log has panicked")?;
    reading.join().map_err(|_panic| "reading from the log has panicked")?;
    set.iter().try_for_each(|set| set.settle())?;
    Ok(served?)
}

fn flashlog(
    arguments: &Arguments,
    main: Arc<FileDevice>,
    log: Arc<FileDevice>,
) -> Result<Arc<Lasting>, Box<dyn std::error::Error>> {
    let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
    // As a set's server does it.
    main.write_early();
    log.write_early();
    create(main.clone(), log.clone(), &names)?;
    let mode = if arguments.asynchronous { Mode::Asynchronous } else { Mode::Synchronous };
    let (set, _opened) = Flashlog::open(main, log, &Options { mode, ..Options::default() })?;
    Ok(Arc::new(Lasting::of(set, Policy::default())))
}

fn exported<D: Device + Extents + 'static>(arguments: &Arguments, device: Arc<D>) -> Export {
    let description = format!("{}, by nbd-serve", device.name());
    Export::new(&arguments.name, device.clone()).with_extents(device).described(&description)
}

fn signals() -> libc::sigset_t {
    // SAFETY: a signal set is plain data; sigemptyset makes it valid, and sigaddset fails only for numbers that are no signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// For this thread and all that it starts.
fn block_signals() -> std::io::Result<()> {
    // SAFETY: `signals` is a valid signal set; a null pointer says that the old mask is not wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals(), std::ptr::null_mut()) } {
        0 => Ok(()),
        number => Err(std::io::Error::from_raw_os_error(number)),
    }
}

fn wait_for_signal() {
    let mut number = 0;
    // SAFETY: `signals` is a valid signal set, and `number` can be written. It fails only for a set with numbers that are no signals.
    unsafe { libc::sigwait(&signals(), &mut number) };
}
