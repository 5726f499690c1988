// An error of the package: `code` says of which kind, the message what was wrong and what to do.
class HeadsError extends Error {
  constructor(code, message, options) {
    super(message, options);
    this.code = code;
  }
  get name() { return "HeadsError"; }
}
